// The Python module sandboxd._native. Bodies convert, release the GIL, call, wrap; nothing else.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/errors.h"
#include "bindings/snapshot.h"
#include "sandbox/spawn.h"

namespace py = pybind11;
using venus::os::LayersBy;
using venus::sandbox::Spawned;
using venus::sandbox::SpawnRequest;

namespace {

struct SpawnedSandbox {
  pid_t pid;
  int pidfd;  // the Python caller's to close
  std::map<std::string, long> timings_us;
};

SpawnedSandbox spawn(const SpawnRequest& request) {
  py::gil_scoped_release unlocked;
  Spawned spawned = venus::sandbox::spawn(request);
  const auto& timings = spawned.timings;
  return {spawned.pid,
          spawned.pidfd.release(),
          {{"cloned", timings.cloned.count()},
           {"mapped", timings.mapped.count()},
           {"mounted", timings.mounted.count()},
           {"ready", timings.ready.count()}}};
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "System calls of the sandbox daemon. Types and documentation: _native.pyi.";
  venus::bindings::register_errors(module);
  venus::bindings::register_snapshot(module);
  py::enum_<LayersBy>(module, "LayersBy")
      .value("DESCRIPTOR", LayersBy::kDescriptor)
      .value("PATH", LayersBy::kPath);
  module.def("layers_by", venus::os::layers_by);
  py::class_<SpawnedSandbox>(module, "SpawnedSandbox")
      .def_readonly("pid", &SpawnedSandbox::pid)
      .def_readonly("pidfd", &SpawnedSandbox::pidfd)
      .def_readonly("timings_us", &SpawnedSandbox::timings_us);
  module.def(
      "spawn",
      [](int init_fd, int plan_fd, int listen_fd, std::string root_mountpoint,
         std::vector<int> lower_fds, int upper_parent_fd, std::uint32_t id_base,
         std::uint32_t id_count, std::vector<int> cgroup_procs_fds,
         std::vector<std::pair<std::string, std::string>> overlay_options, int timeout_ms,
         std::optional<LayersBy> layers_by) {
        return spawn({init_fd, plan_fd, listen_fd, std::move(root_mountpoint),
                      std::move(lower_fds), upper_parent_fd, id_base, id_count,
                      std::move(cgroup_procs_fds), std::move(overlay_options),
                      std::chrono::milliseconds(timeout_ms), layers_by});
      },
      py::kw_only(), py::arg("init_fd"), py::arg("plan_fd"), py::arg("listen_fd"),
      py::arg("root_mountpoint"), py::arg("lower_fds"), py::arg("upper_parent_fd"),
      py::arg("id_base"), py::arg("id_count") = 65536, py::arg("cgroup_procs_fds") = py::tuple(),
      py::arg("overlay_options") = py::tuple(), py::arg("timeout_ms") = 10'000,
      py::arg("layers_by") = py::none());
}
