#include "bindings/snapshot.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "capture/template.h"

namespace venus::bindings {

namespace py = pybind11;

void register_snapshot(py::module_& module) {
  py::class_<Template>(module, "Template")
      .def_property_readonly("coordinator", &Template::coordinator)
      .def_property_readonly("counts", &Template::counts)
      .def_property_readonly("times_ms", &Template::times_ms)
      .def("create_shared_page", &Template::create_shared_page)
      .def("send", &Template::send, py::arg("socket"), py::arg("shared_page"),
           py::arg("externals") = py::tuple(), py::call_guard<py::gil_scoped_release>())
      .def("failure", &Template::failure, py::arg("shared_page"));
  module.def("capture", &capture_template, py::arg("init_pid"), py::arg("externals") = py::tuple(),
             py::arg("while_stopped") = py::none(), py::arg("parent") = py::none(),
             py::arg("leave_out") = "", py::arg("on_external") = "refuse",
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace venus::bindings
