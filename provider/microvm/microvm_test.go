//go:build linux

package microvm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/image/bundle"
	"github.com/seed46cd37a8/atoll/provider/microvm"
	"github.com/seed46cd37a8/atoll/providertest"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, open, providertest.Slow(10), providertest.Count(4))
}

func open(t *testing.T) atoll.Provider {
	t.Helper()
	bundles, err := bundle.Open(os.Getenv("ATOLL_TEST_BUNDLES"), bundle.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bundles.Close() })
	dir := t.TempDir()
	p, err := microvm.New(microvm.Options{Dir: filepath.Join(dir, "state"), RunDir: runDir(t), Bundles: bundles, Accel: "tcg"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func runDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "mv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
