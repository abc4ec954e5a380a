#include "bindings/snapshot.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "capture/template.h"

namespace venus::bindings {

namespace py = pybind11;

namespace {

py::bytes save(const Template &saved, bool digests) {
  Bytes header;
  {
    py::gil_scoped_release unlocked;
    header = saved.save(digests);
  }
  return py::bytes(reinterpret_cast<const char *>(header.data()), header.size());
}

Template load(const std::string &header, const std::vector<int> &descriptors, bool verify_digests) {
  py::gil_scoped_release unlocked;
  return Template::load({header.begin(), header.end()}, descriptors, verify_digests);
}

}  // namespace

void register_snapshot(py::module_& module) {
  py::class_<WriteTracking>(module, "WriteTracking").def(py::init<>());
  py::class_<Template>(module, "Template")
      .def_property_readonly("coordinator", &Template::coordinator)
      .def_property_readonly("counts", &Template::counts)
      .def_property_readonly("children_of_init", &Template::children_of_init)
      .def_property_readonly("times_ms", &Template::times_ms)
      .def("save", &save, py::arg("digests") = false)
      .def("descriptors", &Template::descriptors)
      .def("create_shared_page", &Template::create_shared_page)
      .def("send", &Template::send, py::arg("socket"), py::arg("shared_page"),
           py::arg("externals") = py::tuple(), py::call_guard<py::gil_scoped_release>())
      .def_static("release", &Template::release, py::arg("shared_page"))
      .def("collapse", &Template::collapse, py::call_guard<py::gil_scoped_release>())
      .def("failure", &Template::failure, py::arg("shared_page"));
  module.def("load_template", &load, py::arg("header"), py::arg("descriptors"),
             py::arg("verify_digests") = false);
  module.def("capture", &capture_template, py::arg("init_pid"), py::arg("externals") = py::tuple(),
             py::arg("while_stopped") = py::none(), py::arg("parent") = py::none(),
             py::arg("leave_out") = "", py::arg("on_external") = "refuse",
             py::arg("tracking") = py::none(),
             py::call_guard<py::gil_scoped_release>());
}

}  // namespace venus::bindings
