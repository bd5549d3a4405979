//go:build linux

package native_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// imageOptions returns the options for the images of the suite.
func imageOptions(t *testing.T) []providertest.Option {
	t.Helper()
	reg := testimage.Serve(t)
	ref := reg.Push("tiny:1", testimage.Tiny(t, "text"))
	return []providertest.Option{
		providertest.PullableImage(ref),
		providertest.ImageSource("/file", "text", reg.Unplug),
		providertest.MovingImage(reg.PushTiny("moving:1")),
		providertest.Debian(func(t *testing.T) string { return testimage.Serve(t).Push("debian:1", testimage.Debian(t)) }),
	}
}

// makeElsewhere makes sandboxes in another process.
func makeElsewhere(t *testing.T) (maker *exec.Cmd, open func() atoll.Provider) {
	opts := freshOptions(t)
	return supervisedtest.HostProgram(t, "suite", opts.Dir, opts.RunDir, opts.Helper, opts.Cgroup), func() atoll.Provider {
		p, err := native.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

// suiteProgram is the program of that process.
func suiteProgram(args []string) error {
	p, _, err := openProgram(args)
	if err != nil {
		return err
	}
	defer p.Close()
	return providertest.CreateAndWait(p, os.Stdin, os.Stdout)
}

// openStepwise opens a provider whose steps can fail. It starts every supervisor itself.
func openStepwise(t *testing.T, step func(name string) error) atoll.Provider {
	opts := freshOptions(t).WithStep(step)
	opts.Spare = false
	p, err := native.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// crashSandbox kills a sandbox's supervisor, and with it all of the sandbox.
func crashSandbox(t *testing.T, p atoll.Provider, sb atoll.Sandbox) {
	t.Helper()
	opts := optionsOf(p)
	l := &lab{&supervisedtest.Lab{Provider: p, Places: placesOf(opts), T: t}, opts}
	l.kill(l.SupervisorOf(sb))
}
