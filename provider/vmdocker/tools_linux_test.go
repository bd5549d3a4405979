package vmdocker

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/machine/image/bundle"
	"github.com/seed46cd37a8/atoll/machine/vm"
	"github.com/seed46cd37a8/atoll/provider/mock"
)

// If a program that builds the bundle is missing, Create returns that error at once.
func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	dir := t.TempDir()
	guest := func() ([]byte, error) { return nil, nil }
	bundles, err := bundle.Open(filepath.Join(dir, "bundles"), bundle.Options{Guest: guest})
	if err != nil {
		t.Fatal(err)
	}
	defer bundles.Close()
	creates := 0
	machines, err := mock.New(mock.Options{Before: func(ctx context.Context, op string, _ int) error {
		if op != "create" {
			return nil
		}
		creates++
		_, err := bundles.Build(ctx, bundle.Recipe{Name: "docker", Docker: true}, nil)
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer machines.Close()
	p, err := New(Options{
		Dir: filepath.Join(dir, "state"), Machines: machines, Guest: guest,
		Config: vm.Config{DataDir: filepath.Join(dir, "disks"), ConsoleLogDir: filepath.Join(dir, "consoles")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Second))
	defer cancel()
	_, err = p.Create(ctx, &atoll.Spec{Project: "one"})
	if atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), "sqfstar is not installed: apt-get install") {
		t.Errorf("Create: %v, want ErrUnavailable: sqfstar is not installed", err)
	}
	if creates != 1 {
		t.Errorf("the machine was created %d times, want once", creates)
	}
}
