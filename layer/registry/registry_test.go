package registry_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/teststore"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// openMock returns a registry over mock. Both keep their data in dir.
func openMock(t testing.TB, dir string, opts registry.Options) *registry.Provider {
	t.Helper()
	p, err := mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	if err != nil {
		t.Fatal(err)
	}
	return registry.New(p, teststore.Open(dir), opts)
}

func openLocal(t testing.TB, dir string) *registry.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: filepath.Join(dir, "local")})
	if err != nil {
		t.Fatal(err)
	}
	return registry.New(p, teststore.Open(dir), registry.Options{Server: true})
}

// With makerDir set, the test binary creates a sandbox in that directory, of the
// provider in makerOf, and waits to be killed.
const (
	makerDir = "ATOLL_TEST_MAKER_DIR"
	makerOf  = "ATOLL_TEST_MAKER_OF"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(makerDir); dir != "" {
		err := makeAndHang(dir)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func makeAndHang(dir string) error {
	if step := os.Getenv(killAt); step != "" {
		return dieAt(dir, step, os.Getenv(killIn))
	}
	var p atoll.Provider
	var err error
	if os.Getenv(makerOf) == "local" {
		p, err = local.New(local.Options{Dir: filepath.Join(dir, "local")})
	} else {
		p, err = mock.New(mock.Options{Dir: filepath.Join(dir, "mock")})
	}
	if err != nil {
		return err
	}
	return providertest.CreateAndWait(registry.New(p, teststore.Open(dir), registry.Options{Server: true}), os.Stdin, os.Stdout)
}

func elsewhere(of string, open func(dir string) atoll.Provider) providertest.Option {
	return providertest.OtherProcess(func(t *testing.T) (*exec.Cmd, func() atoll.Provider) {
		dir, maker := t.TempDir(), exec.Command(os.Args[0])
		maker.Env = append(os.Environ(), makerDir+"="+dir, makerOf+"="+of)
		return maker, func() atoll.Provider { return open(dir) }
	})
}

// The registry records sandboxes, names and secrets, reports lost sandboxes, and
// lets commands wait during a rebuild. Over local only crashes differ: its
// sandboxes outlive their maker.
func TestConformance(t *testing.T) {
	t.Run("mock", func(t *testing.T) {
		groups := []string{"create", "crash", "remove", "registry", "patience"}
		if !testing.Short() {
			groups = append(groups, "exec", "volumes", "watch", "errors", "caps")
		}
		providertest.Run(t, func(t *testing.T) atoll.Provider { return openMock(t, t.TempDir(), registry.Options{Server: true}) },
			elsewhere("mock", func(dir string) atoll.Provider { return openMock(t, dir, registry.Options{Server: true}) }),
			providertest.Only(groups...), providertest.WireOnly())
	})
	t.Run("local", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: one provider only")
		}
		providertest.Run(t, func(t *testing.T) atoll.Provider { return openLocal(t, t.TempDir()) },
			elsewhere("local", func(dir string) atoll.Provider { return openLocal(t, dir) }),
			providertest.Only("restart", "crash", "registry"))
	})
}

func TestForwards(t *testing.T) {
	providertest.CheckLayer(t, func(p atoll.Provider) atoll.Provider {
		return registry.New(p, teststore.Open(t.TempDir()), registry.Options{})
	}, "Provider.Secret", "Provider.Reconcile")
}

// The same tests with a store that servers share.
func TestOverPostgres(t *testing.T) {
	teststore.OverPostgres(t, ".", "TestConformance|TestForwards")
}
