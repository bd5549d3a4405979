//go:build linux

package native_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// pullableImage is an image for the suite: it contains one file, and no program.
func pullableImage(t *testing.T) []providertest.Option {
	t.Helper()
	reg := testimage.Serve(t)
	ref := reg.Push("tiny:1", testimage.Tiny(t, "text"))
	return []providertest.Option{providertest.PullableImage(ref), providertest.ImageSource("/file", "text", reg.Unplug), providertest.MovingImage(reg.PushTiny("moving:1"))}
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
	if err := unix.Kill(supervisorOf(t, p, sb), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// supervisorOf returns the PID of the sandbox's supervisor.
func supervisorOf(t testing.TB, p atoll.Provider, sb atoll.Sandbox) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(optionsOf(p).Dir, "records", sb.ID()+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		Supervisor struct {
			PID int `json:"pid"`
		} `json:"keeper"`
	}
	if err := json.Unmarshal(data, &rec); err != nil || rec.Supervisor.PID == 0 {
		t.Fatalf("record: %v, %s", err, data)
	}
	return rec.Supervisor.PID
}
