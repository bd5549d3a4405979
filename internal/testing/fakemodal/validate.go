package fakemodal

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	defaultTimeoutSecs = 5 * 60
	maxTimeoutSecs     = 24 * 60 * 60
)

var (
	sandboxName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,63}$`)
	clouds      = []string{"", "auto", "aws", "gcp", "oci"}
	regionForm  = regexp.MustCompile(`^(us|eu|ap|uk|ca|me|sa|af|mx|jp|au)(-[a-z]+)*(-?[0-9])?$`)
)

// checkSandbox rejects invalid definitions, and features that this server does not have.
func checkSandbox(def *pb.Sandbox) error {
	bad := func(format string, args ...any) error { return status.Errorf(codes.InvalidArgument, format, args...) }
	switch {
	case def.GetTimeoutSecs() > maxTimeoutSecs:
		return bad("timeout must be at most %d seconds, got %d", maxTimeoutSecs, def.GetTimeoutSecs())
	case def.GetName() != "" && !sandboxName.MatchString(def.GetName()):
		return bad("Invalid Sandbox name: '%s'. Names may contain only alphanumeric characters, dashes, periods, and underscores, and must be shorter than 64 characters.", def.GetName())
	case def.GetWorkdir() != "" && !path.IsAbs(def.GetWorkdir()):
		return bad("workdir must be an absolute path, got: %s", def.GetWorkdir())
	case !slices.Contains(clouds, def.GetCloudProviderStr()):
		return bad("Invalid cloud provider: %s", def.GetCloudProviderStr())
	case slices.Contains(def.GetEntrypointArgs(), "") && def.GetEntrypointArgs()[0] == "":
		return bad("the first of entrypoint_args must not be empty")
	}
	for _, region := range def.GetSchedulerPlacement().GetRegions() {
		if !regionForm.MatchString(region) {
			return bad("Invalid region: %s", region)
		}
	}
	for _, check := range []func(*pb.Sandbox, func(string, ...any) error) error{checkResources, checkNetwork, checkPorts, checkMounts} {
		if err := check(def, bad); err != nil {
			return err
		}
	}
	return checkImplemented(def)
}

func checkResources(def *pb.Sandbox, bad func(string, ...any) error) error {
	r := def.GetResources()
	switch {
	case r.GetMilliCpuMax() > 0 && r.GetMilliCpuMax() < r.GetMilliCpu():
		return bad("CPU limit %d is below the request %d", r.GetMilliCpuMax(), r.GetMilliCpu())
	case r.GetMemoryMbMax() > 0 && r.GetMemoryMbMax() < r.GetMemoryMb():
		return bad("memory limit %d is below the request %d", r.GetMemoryMbMax(), r.GetMemoryMb())
	}
	return nil
}

func checkNetwork(def *pb.Sandbox, bad func(string, ...any) error) error {
	for _, cidr := range def.GetNetworkAccess().GetAllowedCidrs() {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return bad("Invalid CIDR: %s", cidr)
		}
	}
	if n := def.GetNetworkAccess(); len(n.GetAllowedCidrs()) > 0 && n.GetNetworkAccessType() != pb.NetworkAccess_ALLOWLIST {
		return bad("allowed_cidrs needs network access of type ALLOWLIST")
	}
	return nil
}

func checkPorts(def *pb.Sandbox, bad func(string, ...any) error) error {
	seen := map[uint32]bool{}
	for _, p := range def.GetOpenPorts().GetPorts() {
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			return bad("Invalid port: %d", p.GetPort())
		}
		if seen[p.GetPort()] {
			return bad("Port %d is specified more than once", p.GetPort())
		}
		seen[p.GetPort()] = true
	}
	return nil
}

func checkMounts(def *pb.Sandbox, bad func(string, ...any) error) error {
	targets, volumes := map[string]bool{}, map[string]bool{}
	for _, m := range def.GetVolumeMounts() {
		target := path.Clean(m.GetMountPath())
		switch {
		case !path.IsAbs(m.GetMountPath()):
			return bad("Volume mount path must be absolute, got: %s", m.GetMountPath())
		case target == "/" || target == "/root" || target == "/tmp":
			return bad("Cannot mount a Volume at %s", target)
		case targets[target]:
			return bad("Mount path %s is used more than once", target)
		case volumes[m.GetVolumeId()]:
			return bad("The same Volume cannot be mounted in multiple locations: %s", m.GetVolumeId())
		}
		targets[target], volumes[m.GetVolumeId()] = true, true
	}
	return nil
}

// checkImplemented rejects features of the service that this server does not have.
func checkImplemented(def *pb.Sandbox) error {
	var what []string
	for name, asked := range map[string]bool{
		"GPUs":                 def.GetResources().GetGpuConfig().GetCount() > 0,
		"cloud bucket mounts":  len(def.GetCloudBucketMounts()) > 0,
		"network file systems": len(def.GetNfsMounts()) > 0,
		"mounts":               len(def.GetMountIds()) > 0,
		"proxies":              def.GetProxyId() != "",
		"memory snapshots":     def.GetEnableSnapshot(),
	} {
		if asked {
			what = append(what, name)
		}
	}
	if len(what) == 0 {
		return nil
	}
	slices.Sort(what)
	return status.Errorf(codes.Unimplemented, "this test server has no %s", strings.Join(what, ", "))
}
