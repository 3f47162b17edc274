/* Where Python meets C++. The signature of a function says what it takes, and `call` checks that before it is called:
 *
 *     Matrix<T>      a tensor (rows,columns) of T on the CPU, whose rows lie in one piece, `apart` numbers from each other
 *     Strided<T>     the same with any strides
 *     Vector<T>      a tensor (size,) without gaps;   Flat<T>: of any shape, without gaps
 *     Optional<V>    one of these, or None, whose data are then NULL
 *     Several<V>     a list of them
 *     int64_t, double
 *
 * The caller of a Python function holds references to its arguments, so that tensors outlive the call; nothing is kept
 * after it. What the sizes of several tensors have to do with each other is said by `need` within the functions.
 *
 * PyTorch describes a tensor through DLPack's exchange of C functions. A call with 9 tensors takes 0.85 µs so; with 8 by the
 * general way, `__dlpack__`, which nanobind 3.1 takes, 27 µs (AMD Zen 4, 2026-11-18), and a step of training
 * hands over some 80 tensors. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

/* Of https://dmlc.github.io/dlpack, version 1: a published interface, whose version is checked. */
namespace dlpack {
struct Tensor {
    void *data;
    struct { int32_t type, number; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } kind;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct Exchange {
    struct { uint32_t major, minor; } version;
    void *older, *allocate, *export_managed, *import_managed;
    int (*describe)(void *tensor, Tensor *);
};
enum { CPU = 1, MOST_DIMENSIONS = 4 };
static const Exchange *exchange;              /* PyTorch's, found when this module is imported */
static PyObject *tensor_type, *parameter_type; /* others are tensors in name only, such as those of a tracer */
}

struct Wrong { PyObject *kind; std::string text; };
struct NoSuchRow { int64_t row, rows; };
struct PythonError {};

static void need(bool holds, const char *what)
{
    if (!holds) throw Wrong{PyExc_ValueError, std::string("expected ") + what};
}

template <class T> struct Strided { T *data; int64_t rows, columns, down, along; };
template <class T> struct Matrix {
    T *data;
    int64_t rows, columns, apart;
    T *operator[](int64_t row) const { return data + row * apart; }
};
template <class T> struct Vector {
    T *data;
    int64_t size;
    T &operator[](int64_t i) const { return data[i]; }
};
template <class T> struct Flat { T *data; int64_t size; };
template <class V> struct Optional : V {};
template <class V> struct Several {
    enum { MOST = 64 };
    V items[MOST];
    int64_t count;
    const V &operator[](int64_t i) const { return items[i]; }
};

/* What a tensor of T has to be. */
template <class T> constexpr int code = std::is_floating_point_v<T> ? 2 : 0;
template <class T> std::string named()
{
    return (std::is_floating_point_v<T> ? "float" : "int") + std::to_string(8 * sizeof(T));
}

static bool is_tensor(PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == dlpack::tensor_type || (PyObject *)Py_TYPE(object) == dlpack::parameter_type;
}

static dlpack::Tensor describe(PyObject *object)
{
    dlpack::Tensor found;
    if (!is_tensor(object)) throw Wrong{PyExc_TypeError, "expected a tensor"};
    if (dlpack::exchange->describe(object, &found) != 0) throw PythonError{};
    return found;
}

template <class T> dlpack::Tensor describe_as(PyObject *object)
{
    const dlpack::Tensor found = describe(object);
    if (found.device.type != dlpack::CPU || found.kind.code != code<T> || found.kind.bits != 8 * sizeof(T) ||
        found.kind.lanes != 1)
        throw Wrong{PyExc_TypeError, "expected " + named<T>() + " on the CPU"};
    return found;
}

template <class T> T *start_of(const dlpack::Tensor &x) { return (T *)((char *)x.data + x.byte_offset); }

template <class V> struct From;
template <class T> struct From<Strided<T>> {
    static Strided<T> python(PyObject *object)
    {
        const dlpack::Tensor x = describe_as<T>(object);
        need(x.ndim == 2, "a matrix");
        return {start_of<T>(x), x.shape[0], x.shape[1], x.strides[0], x.strides[1]};
    }
};
template <class T> struct From<Matrix<T>> {
    static Matrix<T> python(PyObject *object)
    {
        const Strided<T> x = From<Strided<T>>::python(object);
        need(x.columns <= 1 || x.along == 1, "rows without gaps");
        need(x.rows <= 1 || x.down >= x.columns, "rows apart from each other");
        return {x.data, x.rows, x.columns, x.rows <= 1 && x.down < x.columns ? x.columns : x.down};
    }
};
template <class T> struct From<Flat<T>> {
    static Flat<T> python(PyObject *object)
    {
        const dlpack::Tensor x = describe_as<T>(object);
        int64_t size = 1;
        for (int i = x.ndim - 1; i >= 0; i--) {
            need(x.shape[i] <= 1 || x.strides[i] == size, "a tensor without gaps");
            size *= x.shape[i];
        }
        return {start_of<T>(x), size};
    }
};
template <class T> struct From<Vector<T>> {
    static Vector<T> python(PyObject *object)
    {
        const dlpack::Tensor x = describe_as<T>(object);
        need(x.ndim == 1 && (x.shape[0] <= 1 || x.strides[0] == 1), "one dimension without gaps");
        return {start_of<T>(x), x.shape[0]};
    }
};
template <class V> struct From<Optional<V>> {
    static Optional<V> python(PyObject *object)
    {
        return object == Py_None ? Optional<V>{} : Optional<V>{From<V>::python(object)};
    }
};
template <class V> struct From<Several<V>> {
    static Several<V> python(PyObject *object)
    {
        if (!PyList_Check(object)) throw Wrong{PyExc_TypeError, "expected a list of tensors"};
        Several<V> all;
        all.count = PyList_GET_SIZE(object);
        need(all.count <= all.MOST, "at most 64 tensors in a list");
        for (int64_t i = 0; i < all.count; i++) all.items[i] = From<V>::python(PyList_GET_ITEM(object, i));
        return all;
    }
};
template <> struct From<int64_t> {
    static int64_t python(PyObject *object)
    {
        const int64_t value = PyLong_AsLongLong(object);
        if (value == -1 && PyErr_Occurred()) throw PythonError{};
        return value;
    }
};
template <> struct From<double> {
    static double python(PyObject *object)
    {
        const double value = PyFloat_AsDouble(object);
        if (value == -1 && PyErr_Occurred()) throw PythonError{};
        return value;
    }
};

static PyObject *to_python(int64_t x) { return PyLong_FromLongLong(x); }
static PyObject *to_python(double x) { return PyFloat_FromDouble(x); }
template <class... X> PyObject *to_python(const std::tuple<X...> &several)
{
    return std::apply(
        [](auto... x) {
            PyObject *tuple = PyTuple_New(sizeof...(X));
            Py_ssize_t i = 0;
            if (tuple) (PyTuple_SET_ITEM(tuple, i++, to_python(x)), ...);
            return tuple;
        },
        several);
}

/* While numbers are computed, other threads of Python may run. */
struct OthersMayRun {
    PyThreadState *self = PyEval_SaveThread();
    ~OthersMayRun() { PyEval_RestoreThread(self); }
};

/* An argument, or what is wrong with it and which one it is. */
template <class V> V take(PyObject *given, size_t place)
{
    try {
        return From<V>::python(given);
    } catch (const Wrong &wrong) {
        throw Wrong{wrong.kind, "argument " + std::to_string(place + 1) + ": " + wrong.text};
    }
}

template <class F> struct Signature;
template <class R, class... P> struct Signature<R (*)(P...)> {
    static constexpr size_t arguments = sizeof...(P);
    template <auto function, size_t... I> static PyObject *invoke(PyObject *const *given, std::index_sequence<I...>)
    {
        const std::tuple<P...> values{take<P>(given[I], I)...};
        if constexpr (std::is_void_v<R>) {
            [&] { OthersMayRun released; std::apply(function, values); }();
            Py_RETURN_NONE;
        } else {
            const R result = [&] { OthersMayRun released; return std::apply(function, values); }();
            return to_python(result);
        }
    }
};

template <auto function> PyObject *invoke(PyObject *const *given, Py_ssize_t count)
{
    using Its = Signature<decltype(function)>;
    if (count != (Py_ssize_t)Its::arguments)
        throw Wrong{PyExc_TypeError, "expected " + std::to_string(Its::arguments) + " arguments"};
    return Its::template invoke<function>(given, std::make_index_sequence<Its::arguments>{});
}

/* Run `body`, and let Python raise what it throws. */
template <class Body> PyObject *safely(Body body)
{
    try {
        return body();
    } catch (const Wrong &wrong) {
        PyErr_SetString(wrong.kind, wrong.text.c_str());
    } catch (const NoSuchRow &none) {
        PyErr_Format(PyExc_IndexError, "row %lld of a table that has %lld", (long long)none.row, (long long)none.rows);
    } catch (const PythonError &) {
    }
    return nullptr;
}

template <auto function> PyObject *call(PyObject *, PyObject *const *given, Py_ssize_t count)
{
    return safely([=] { return invoke<function>(given, count); });
}

/* A function of which there are two: `twice` is called where the first argument, or the first of a list, is of float64. */
template <auto single, auto twice> PyObject *call_either(PyObject *, PyObject *const *given, Py_ssize_t count)
{
    return safely([=] {
        PyObject *first = count ? given[0] : Py_None;
        if (PyList_Check(first) && PyList_GET_SIZE(first)) first = PyList_GET_ITEM(first, 0);
        return describe(first).kind.bits == 64 ? invoke<twice>(given, count) : invoke<single>(given, count);
    });
}
