#include "bindings/snapshot.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "capture/template.h"
#include "tracer/client.h"

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

bool is_reset(const std::string &on_external) {
  if (on_external != "refuse" && on_external != "reset")
    throw os::Error("capture with on_external", on_external, EINVAL);
  return on_external == "reset";
}

Template capture(pid_t init_pid, const std::vector<int> &externals,
                 const std::function<void()> &while_stopped, const Template *parent,
                 const std::string &leave_out, const std::string &on_external,
                 WriteTracking *tracking) {
  CaptureRequest request{init_pid, external_ends(externals), {}, while_stopped, {},
                         is_reset(on_external), tracking};
  if (parent) request.lineage = parent->lineage();
  return capture_template(std::move(request), {}, leave_out);
}

Template trace(TracerClient &tracer, const std::vector<int> &externals,
               const std::function<void()> &while_stopped, const Template *parent, bool keep,
               const std::string &on_external) {
  return tracer.capture(externals, while_stopped, parent, keep, is_reset(on_external));
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
  module.def("capture", &capture, py::arg("init_pid"), py::arg("externals") = py::tuple(),
             py::arg("while_stopped") = py::none(), py::arg("parent") = py::none(),
             py::arg("leave_out") = "", py::arg("on_external") = "refuse",
             py::arg("tracking") = py::none(),
             py::call_guard<py::gil_scoped_release>());
  py::class_<TracerClient>(module, "Tracer")
      .def(py::init<int>(), py::arg("socket"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("pid", &TracerClient::pid)
      .def_property_readonly("kept", &TracerClient::kept)
      .def("capture", &trace, py::arg("externals"), py::arg("while_stopped"), py::arg("parent"),
           py::kw_only(), py::arg("keep"), py::arg("on_external") = "refuse",
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("gone", &TracerClient::gone)
      .def("end", &TracerClient::end, py::call_guard<py::gil_scoped_release>())
      .def("wait_until_gone", &TracerClient::wait_until_gone, py::arg("timeout_ms"),
           py::call_guard<py::gil_scoped_release>());
  module.def("end_tracer", &end_tracer, py::arg("socket"));
}

}  // namespace venus::bindings
