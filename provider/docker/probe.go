package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// Probe implements atoll.Prober.
func (p *Provider) Probe(ctx context.Context) atoll.Probe {
	if err := p.pingEngine(ctx); err != nil {
		return p.diagnoseError(err)
	}
	engine, err := p.engineInfo(ctx)
	if err != nil {
		return p.diagnoseError(err)
	}
	if engine.podman && p.opts.Runtime != "" {
		return atoll.Probe{Reason: fmt.Sprintf("podman does not accept a runtime from Atoll, and docker.runtime is %q", p.opts.Runtime), Fix: runtimeFix}
	}
	if !p.opts.Plain {
		program, err := p.opts.Guest()
		if err != nil {
			return atoll.Probe{Reason: "the guest's program is missing: " + err.Error(), Fix: "make guest, or set docker.plain to do without a guest"}
		}
		if err := checkGuestProgram(program, engine.arch); err != nil {
			return atoll.Probe{Reason: causeText(err), Fix: "GOARCH=" + engine.arch + " make guest"}
		}
	}
	return atoll.Probe{OK: true, Notes: p.probeNotes(engine)}
}

// probeNotes returns the limitations of a usable engine.
func (p *Provider) probeNotes(engine engineInfo) []string {
	var notes []string
	if p.opts.Plain {
		notes = append(notes, "docker.plain is set: without a guest, sandboxes have no files, no ports and no idle stop, and no commands outlive the server")
	}
	for _, limit := range []struct {
		can  bool
		what string
	}{{engine.memory, "memory"}, {engine.cpu, "CPU"}, {engine.pids, "process"}} {
		if !limit.can {
			notes = append(notes, "the engine cannot limit "+limit.what+" use: "+limitRequirement)
		}
	}
	if engine.podman {
		notes = append(notes, "the engine is Podman: it supports no GPUs, does not remove images that sandboxes use, and must be on this machine with the storage driver overlay")
	}
	if !engine.cgroups {
		notes = append(notes, "no pause and no usage: "+noCgroupsReason)
	}
	return notes
}

// diagnoseError explains why the engine cannot be used, and what to do.
func (p *Provider) diagnoseError(err error) atoll.Probe {
	text, at := err.Error(), p.engine.DaemonHost()
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	start := startCommands[runtime.GOOS] + "or set DOCKER_HOST or docker.host to where one listens"
	switch {
	case errors.Is(err, fs.ErrPermission), has("permission denied"):
		return atoll.Probe{
			Reason: "you may not use the Docker Engine at " + at,
			Fix:    "sudo usermod -aG docker $USER, and log in again; or run an engine of your own (dockerd-rootless-setuptool.sh install)",
		}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOENT):
		p := atoll.Probe{Reason: "no Docker Engine found: " + at + " does not exist", Fix: start}
		if _, err := exec.LookPath("dockerd"); err != nil && runtime.GOOS == "linux" {
			p.Fix, p.Packages = "apt-get install "+enginePackage+", "+start, []string{enginePackage}
		}
		return p
	case has("minimum supported API version"):
		return atoll.Probe{Reason: "the Docker Engine at " + at + " is too old: " + text, Fix: "upgrade it to 19.03 or later"}
	case has("x509:", "tls:", "client authentication", "TLS-enabled", "HTTP request to an HTTPS server", "HTTP response to HTTPS client"):
		return atoll.Probe{
			Reason: "the Docker Engine at " + at + " and this program do not agree on TLS: " + text,
			Fix:    "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the directory with its ca.pem and your cert.pem and key.pem",
		}
	case client.IsErrConnectionFailed(err):
		return atoll.Probe{Reason: "no Docker Engine answers at " + at + ": " + text, Fix: start}
	}
	return atoll.Probe{Reason: "the Docker Engine at " + at + " does not work: " + text, Fix: start}
}

// enginePackage is the Debian package of the Docker Engine.
const enginePackage = "docker.io"

// startCommands tells how to start an engine, by operating system.
var startCommands = map[string]string{
	"linux":   "start it (systemctl start docker; Podman's is at unix://$XDG_RUNTIME_DIR/podman/podman.sock after systemctl --user start podman.socket), ",
	"darwin":  "start Docker Desktop (open -a Docker; brew install --cask docker-desktop installs it), ",
	"windows": "start Docker Desktop (winget install Docker.DockerDesktop installs it), ",
}

// causeText returns the text of an error of Atoll's without the operation.
func causeText(err error) string {
	if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

var _ atoll.Prober = (*Provider)(nil)
