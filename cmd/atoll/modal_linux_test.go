package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/internal/testing/fakemodal"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
)

// Sandboxes on Modal have their whole lifecycle, as far as the fake implements the protocol.
func TestModalScripts(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Cgroups)
	if err := gvisor.Static("/proc/self/exe"); err != nil {
		t.Skipf("gVisor, whose sandboxes stand for Modal's, needs a static program: %v", err)
	}
	dir := t.TempDir()
	backend, err := gvisor.New(gvisor.Options{Dir: filepath.Join(dir, "s"), RunDir: filepath.Join(dir, "r"), Cgroup: "atoll-modalcmd-"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() }) // after the scripts, which run in parallel
	server, err := fakemodal.New(fakemodal.Options{
		Backend: backend, Dir: filepath.Join(dir, "modal"), TokenID: "ak-test", TokenSecret: "as-test",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	program, err := testenv.Guest()
	if err != nil {
		t.Fatal(err)
	}
	guest := filepath.Join(dir, "guest")
	if err := os.WriteFile(guest, program, 0o755); err != nil {
		t.Fatal(err)
	}
	runScripts(t, "testdata/modal", "modal",
		"MODAL_TOKEN_ID=ak-test", "MODAL_TOKEN_SECRET=as-test", "MODAL_SERVER_URL="+server.URL(), "ATOLL_MODAL_GUEST="+guest,
		"ATOLL_MODAL_IMAGE="+testimage.Serve(t).Push("busybox:1", testimage.WithSockets(t)))
}
