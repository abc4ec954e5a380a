#include "bindings/errors.h"

#include <pybind11/stl.h>

#include "os/error.h"
#include "restore/refused.h"
#include "tracer/messages.h"

namespace venus::bindings {

namespace py = pybind11;

namespace {

PyObject* native_refused = nullptr;
PyObject* tracer_gone = nullptr;
PyObject* native_error = nullptr;  // owned by the module, which is never unloaded

// Names of a sandbox are any bytes. They are for people to read, and to be sent as text.
py::object text(const std::string& bytes) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

void raise(const os::Error& error, PyObject* kind) {
  py::object instance = py::reinterpret_borrow<py::object>(kind)(text(error.what()));
  instance.attr("operation") = text(error.operation());
  instance.attr("object") = text(error.object());
  instance.attr("errno") = error.error_number();
  instance.attr("op_index") = error.op_index;
  PyErr_SetObject(kind, instance.ptr());
}

void raise(const Refused& refused) {
  py::object instance = py::reinterpret_borrow<py::object>(native_refused)(text(refused.what()));
  instance.attr("process") = text(refused.process());
  instance.attr("object") = text(refused.object());
  instance.attr("reason") = text(refused.reason());
  PyErr_SetObject(native_refused, instance.ptr());
}

}  // namespace

void register_errors(py::module_& module) {
  native_error = PyErr_NewExceptionWithDoc(
      "sandboxd._native.NativeError",
      "A failed system call or setup step: `operation` on `object` failed with `errno`.", nullptr,
      nullptr);
  if (native_error == nullptr) throw py::error_already_set();
  module.add_object("NativeError", py::reinterpret_borrow<py::object>(native_error));
  native_refused = PyErr_NewExceptionWithDoc(
      "sandboxd._native.Refused",
      "State that a snapshot cannot hold: `object` of `process`, for `reason`.", nullptr, nullptr);
  if (native_refused == nullptr) throw py::error_already_set();
  module.add_object("Refused", py::reinterpret_borrow<py::object>(native_refused));
  tracer_gone = PyErr_NewExceptionWithDoc("sandboxd._native.TracerGone",
                                          "The tracer ended, or closed the connection.",
                                          native_error, nullptr);
  if (tracer_gone == nullptr) throw py::error_already_set();
  module.add_object("TracerGone", py::reinterpret_borrow<py::object>(tracer_gone));
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const PeerGone& error) {
      raise(error, tracer_gone);
    } catch (const os::Error& error) {
      raise(error, native_error);
    } catch (const Refused& refused) {
      raise(refused);
    }
  });
}

}  // namespace venus::bindings
