package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	f, err := p.engineInfo(ctx)
	if err != nil {
		return p.diagnoseError(err)
	}
	if f.podman && p.opts.Runtime != "" {
		return atoll.Probe{Reason: fmt.Sprintf("podman takes no runtime from us, and docker.runtime is %q", p.opts.Runtime), Fix: runtimeFix}
	}
	if !p.opts.Plain {
		program, err := p.opts.Guest()
		if err != nil {
			return atoll.Probe{Reason: "the guest's program is missing: " + err.Error(), Fix: "make guest, or set docker.plain to do without"}
		}
		if err := checkGuestProgram(program, f.arch); err != nil {
			return atoll.Probe{Reason: causeText(err), Fix: "GOARCH=" + f.arch + " make guest"}
		}
	}
	return atoll.Probe{OK: true, Notes: p.probeNotes(f)}
}

// probeNotes say what works less well than it could.
func (p *Provider) probeNotes(f engineInfo) []string {
	var notes []string
	if p.opts.Plain {
		notes = append(notes, "docker.plain is set: sandboxes have no guest, which means no files, no ports and no idle stop, and no commands that outlive the server")
	}
	for _, limit := range []struct {
		can  bool
		what string
	}{{f.memory, "memory"}, {f.cpu, "CPU"}, {f.pids, "process"}} {
		if !limit.can {
			notes = append(notes, "the engine cannot limit "+limit.what+" use: "+limitRequirement)
		}
	}
	if f.podman {
		notes = append(notes, "it is Podman's service, which takes no GPUs, removes no image before its sandboxes, and has to be on this machine, with the storage driver overlay")
	}
	if !f.cgroups {
		notes = append(notes, "no pause and no usage: "+noCgroupsReason)
	}
	return notes
}

// diagnoseError says why no engine can be used, and what to do.
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
		return atoll.Probe{Reason: "no Docker Engine is there: " + at + " does not exist", Fix: start}
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

// startCommands are how an engine is started on an operating system.
var startCommands = map[string]string{
	"linux":   "start it (systemctl start docker; Podman's is at unix://$XDG_RUNTIME_DIR/podman/podman.sock after systemctl --user start podman.socket), ",
	"darwin":  "start Docker Desktop (open -a Docker; brew install --cask docker-desktop installs it), ",
	"windows": "start Docker Desktop (winget install Docker.DockerDesktop installs it), ",
}

// causeText is what an error of ours says apart from what was being done.
func causeText(err error) string {
	if e := (*atoll.Error)(nil); errors.As(err, &e) && e.Err != nil {
		return e.Err.Error()
	}
	return err.Error()
}

var _ atoll.Prober = (*Provider)(nil)
