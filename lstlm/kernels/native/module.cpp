/* lstlm.kernels._native: what a step of training consists of, compiled.
 *
 * Each function stands beside one of reference.py that gives the same result and is what it is tested against; ops.py
 * chooses. Matrices are row-major. Nothing here allocates memory for numbers or keeps any: results and scratch are tensors
 * of the caller's. The parts are included once for each type of number. */
#include "boundary.h"

#include "common.h"

#include "threads.h"

#include "losses.h"

/* Which vectors this processor has: 4 are those of x86-64-v4, 512 bits, 3 those of v3, 256; 0 is whatever all have. */
static int64_t find_level()
{
#ifdef SEVERAL_PROCESSORS
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v4") ? 4 : __builtin_cpu_supports("x86-64-v3") ? 3 : 0;
#else
    return 0;
#endif
}
static const int64_t LEVEL = find_level();
static int64_t level() { return LEVEL; }

namespace float32 {
using Real = float;
#include "parts.h"
}
namespace float64 {
using Real = double;
#include "parts.h"
}

/* seen (n,) ← how many of the `count` repairs since `start` the rows ids (n,) have seen. Returns whether that says it all:
 * 0 where a stamp is older. */
static int64_t read_stamps(Vector<const int32_t> stamp, Vector<const int64_t> ids, int64_t start, int64_t count,
                           Vector<int64_t> seen)
{
    int64_t all = 1;
    need(seen.size == ids.size, "seen (n,)");
    check_rows(ids, stamp.size);
    for (int64_t i = 0; i < ids.size; i++) {
        seen[i] = stamp[ids[i]] - start;
        all = all && seen[i] >= 0 && seen[i] <= count;
    }
    return all;
}

/* words ← the ids (n,), each once, in the order in which they occur; place (n,) ← where among them each is. Returns how many
 * there are, and whether an example, whose ids lie between two of the offsets (m+1,), has one twice.
 * Scratch: n numbers, and so many slots more, a power of 2 above n. */
static std::tuple<int64_t, int64_t> distinct(Vector<const int64_t> ids, Vector<const int64_t> offsets, Vector<int64_t> words,
                                             Vector<int64_t> place, Vector<int64_t> scratch)
{
    enum { NONE = -1 };
    const int64_t n = ids.size;
    const Vector<int64_t> seen = {scratch.data, n}, slots = {scratch.data + n, scratch.size - n};
    const uint64_t mask = slots.size - 1;
    need(words.size == n && place.size == n, "words, place (n,)");
    need(slots.size > n && (slots.size & (slots.size - 1)) == 0, "slots a power of 2 above the number of ids");
    check_offsets(offsets, n);
    for (int64_t slot = 0; slot < slots.size; slot++) slots[slot] = NONE;
    int64_t count = 0, repeated = 0;
    for (int64_t i = 0; i + 1 < offsets.size; i++)
        for (int64_t k = offsets[i]; k < offsets[i + 1]; k++) {
            uint64_t slot = ((uint64_t)ids[k] * 0x9E3779B97F4A7C15u >> 32) & mask;
            while (slots[slot] != NONE && words[slots[slot]] != ids[k]) slot = (slot + 1) & mask;
            if (slots[slot] == NONE)
                words[count] = ids[k], slots[slot] = count++;
            else
                repeated |= seen[slots[slot]] == i;
            place[k] = slots[slot];
            seen[place[k]] = i;
        }
    return {count, repeated};
}

/* merged (n,) ← values, but of those of an example's pairs with the same word, of u, the first has the sum and the others 0.
 * Scratch: first (u,), where each word was seen first in the latest example that has it. */
static void merge(Vector<const int64_t> place, Vector<const int64_t> offsets, Vector<const double> values,
                  Vector<double> merged, Vector<int64_t> first)
{
    need(values.size == place.size && merged.size == place.size, "values, merged (n,)");
    check_offsets(offsets, place.size);
    check_rows(place, first.size);
    for (int64_t w = 0; w < first.size; w++) first[w] = -1;
    for (int64_t i = 0; i + 1 < offsets.size; i++)
        for (int64_t k = offsets[i]; k < offsets[i + 1]; k++) {
            const bool again = first[place[k]] >= offsets[i];
            merged[k] = again ? 0 : values[k];
            if (again)
                merged[first[place[k]]] += values[k];
            else
                first[place[k]] = k;
        }
}

#define METHOD(name, ...) {#name, (PyCFunction)(void (*)())__VA_ARGS__, METH_FASTCALL, nullptr}
#define ONE(name) METHOD(name, call<name>)
#define BOTH(name) METHOD(name, call_either<float32::name, float64::name>)
static PyMethodDef functions[] = {
    BOTH(sum_rows), BOTH(total_of), BOTH(write_rows), BOTH(add_rows), BOTH(adagrad_rows), BOTH(gemm), BOTH(layers_forward),
    BOTH(layers_backward), BOTH(adagrad), BOTH(adam), BOTH(power_iteration), BOTH(repair_frame), BOTH(repair_rows),
    BOTH(leave_segments), BOTH(low_rank_outputs), BOTH(losses), BOTH(low_rank_backward), BOTH(low_rank_shrink), BOTH(add_up),
    BOTH(low_rank_update), BOTH(square_outputs), BOTH(square_backward), BOTH(square_sums),
    BOTH(symmetric_series), BOTH(square_update), BOTH(cross_entropy), BOTH(class_entropy), BOTH(adagrad_classes), BOTH(adagrad_table), BOTH(dot_bags),
    BOTH(sum_bags), BOTH(add_bags),
    ONE(distinct), ONE(merge), ONE(outside), ONE(read_stamps), METHOD(layout, call<float32::layout>), ONE(level), {nullptr, nullptr, 0, nullptr}};

/* Find how PyTorch describes its tensors. */
static bool find_exchange()
{
    PyObject *torch = PyImport_ImportModule("torch"), *nn = PyImport_ImportModule("torch.nn");
    dlpack::tensor_type = torch ? PyObject_GetAttrString(torch, "Tensor") : nullptr;
    dlpack::parameter_type = nn ? PyObject_GetAttrString(nn, "Parameter") : nullptr;
    PyObject *capsule =
        dlpack::tensor_type ? PyObject_GetAttrString(dlpack::tensor_type, "__dlpack_c_exchange_api__") : nullptr;
    Py_XDECREF(torch);
    Py_XDECREF(nn);
    if (!capsule || !dlpack::parameter_type) {
        PyErr_SetString(PyExc_ImportError, "this PyTorch does not offer its tensors by DLPack's C functions; 2.10 does");
        return false;
    }
    dlpack::exchange = (const dlpack::Exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule); /* its type keeps it */
    if (dlpack::exchange && dlpack::exchange->version.major != 1) {
        PyErr_SetString(PyExc_ImportError, "this PyTorch offers its tensors by another version of DLPack than 1");
        return false;
    }
    return dlpack::exchange != nullptr;
}

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__native()
{
    Threads::begin();
    return find_exchange() ? PyModule_Create(&definition) : nullptr;
}
