//go:build linux

package modal_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/modal"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// realImage names the image of the sandboxes that TestReal creates at Modal. It must have
// python3, and the programs of Debian or busybox.
const realImage = "ATOLL_MODAL_IMAGE_FOR_TESTS"

// The suite at Modal itself, or at MODAL_SERVER_URL: see scripts/modal.
func TestReal(t *testing.T) {
	image := os.Getenv(realImage)
	if image == "" {
		t.Skip("needs an account at Modal, and costs: scripts/modal runs it")
	}
	app := "atoll-test-" + atoll.NewID()[:8]
	opener := func(t testing.TB, change ...func(*modal.Options)) *modal.Provider {
		return openReal(t, app, image, change...)
	}
	other := opener(t) // it sees the suite's sandboxes
	defer other.Close()
	boxes := func(t *testing.T) map[string]string {
		t.Helper()
		all, err := other.Boxes(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	crash := func(t *testing.T, _ atoll.Provider, sb atoll.Sandbox) {
		t.Helper()
		for id, name := range boxes(t) {
			if strings.HasSuffix(name, sb.ID()) {
				if err := other.End(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
		t.Fatalf("no sandbox of the app is %s", sb.ID())
	}
	boxes(t) // the connection is not a leak
	conform(t, opener, providertest.PullableImage("busybox:1.36"), providertest.CrashSandbox(crash),
		providertest.Leaks(func(t *testing.T) []string { return slices.Sorted(maps.Values(boxes(t))) }),
		providertest.Except("volumes/a named volume is shared in its project and outlives its sandboxes",
			"by Modal's documentation, a sandbox sees the writes of others to a volume after it mounts it again"))
}

// openReal opens a provider of the account that the environment names, with names of its own.
func openReal(t testing.TB, app, image string, change ...func(*modal.Options)) *modal.Provider {
	t.Helper()
	opts := modal.Options{
		ServerURL: os.Getenv("MODAL_SERVER_URL"), TokenID: os.Getenv("MODAL_TOKEN_ID"), TokenSecret: os.Getenv("MODAL_TOKEN_SECRET"),
		Environment: os.Getenv("MODAL_ENVIRONMENT"), App: app, Prefix: "t" + atoll.NewID()[:8],
		Image: image, Guest: testenv.Guest, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range change {
		f(&opts)
	}
	p, err := modal.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	options.Store(p, opts)
	t.Cleanup(func() { // it is closed, and so are those like it
		last, err := modal.New(opts)
		if err != nil {
			t.Error(err)
			return
		}
		defer last.Close()
		if err := last.Scrap(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return p
}
