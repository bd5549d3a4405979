package stack

import (
	"context"
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/remote"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// computeBackend returns the configured backend, or nil for sandboxes of the provider.
func (b *Builder) computeBackend() jobs.Backend {
	if b.Compute.Backend != "dagger" {
		return nil
	}
	return b.daggerBackend()
}

// daggerBackend returns the backend of the program atoll-dagger, which starts at the first use.
func (b *Builder) daggerBackend() remote.Backend {
	encoded, err := plugin.EncodeSettings(b.Dagger)
	if err != nil {
		panic(err) // the settings have no secret, so nothing can fail
	}
	program := plugin.NewProgram(plugin.Options{Name: "dagger", StateDir: b.StateDir, Settings: encoded, Guest: b.Docker.Guest})
	return remote.NewClient(program.HTTPClient(), program.Close)
}

// ProbeCompute reports whether the compute backend dagger can run the programs of sandbox_run here. It does not try
// an unused backend.
func (b *Builder) ProbeCompute(ctx context.Context) (name string, used bool, p atoll.Probe) {
	if b.Compute.Backend != "dagger" {
		return "dagger", false, atoll.Probe{
			Reason: fmt.Sprintf("not configured: compute.backend is %s", b.Compute.Backend),
			Fix:    "to run the programs of sandbox_run in Dagger, set compute.backend: dagger, and dagger.engine to the address of its engine",
		}
	}
	backend := b.daggerBackend()
	p = backend.Probe(ctx)
	if err := backend.Close(); err != nil && p.OK {
		p = atoll.Probe{Reason: err.Error()}
	}
	return "dagger", true, p
}
