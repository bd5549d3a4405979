// Package cmd_test checks what the commands link, how large they are and what they do at start.
package cmd_test

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A program is one that make build makes, and what it may be.
type program struct {
	from  string   // the command of which it is a build, if not that of its name
	tags  string   // of the build
	size  int64    // bytes of the file, at most
	inits int64    // bytes that its initialisers allocate, at most
	own   int64    // bytes of memory of its own when it prints its version, at most
	never []string // the packages that it does not link, as the beginnings of their paths
}

const (
	megabyte = 1000 * 1000
	module   = "github.com/seed46cd37a8/atoll"
	whole    = "embedguest,embedengine" // the tags of all programs except the client
)

// mostOnDisk limits the bytes of the client and its server together, which every user needs. The server has the engines and
// the guest inside.
const mostOnDisk = 97 * megabyte

// remote are the packages that only one program each needs.
var remote = []string{"k8s.io/", "github.com/modal-labs/", "dagger.io/"}

// engines are the packages that no plugin needs.
var engines = []string{"gvisor.dev/", "github.com/aws/", "github.com/jackc/pgx", "modernc.org/", "github.com/moby/moby/", "go.opentelemetry.io/otel/sdk", "github.com/spf13/cobra"}

var programs = map[string]program{
	"atoll":               {"", "client", 13 * megabyte, megabyte, 4 * megabyte, slices.Concat(remote, engines[:6], []string{"gvisor.dev/", "github.com/prometheus/", "github.com/google/", "github.com/klauspost/", module + "/provider/plugin", module + "/layer/trace"})},
	"atoll-server":        {"atoll", whole, 85 * megabyte, 5 * megabyte, 11 * megabyte, append([]string{"gvisor.dev/gvisor/pkg/sentry/", "gvisor.dev/gvisor/runsc/", "golang.org/x/crypto/x509roots/fallback "}, remote...)},
	"atoll-engine":        {"", whole, 46 * megabyte, 2 * megabyte, 6 * megabyte, append(append([]string{"gvisor.dev/gvisor/runsc/gvisorbinaries/embed"}, remote...), engines[1:]...)},
	"atoll-native":        {"", whole, 16 * megabyte, 2 * megabyte, 4 * megabyte, append(append([]string{"gvisor.dev/gvisor/pkg/sentry/", "gvisor.dev/gvisor/runsc/"}, remote...), engines[1:]...)},
	"atoll-kubernetes":    {"", whole, 32 * megabyte, 3 * megabyte, 7 * megabyte, append([]string{"github.com/modal-labs/", "dagger.io/"}, engines...)},
	"atoll-modal":         {"", whole, 26 * megabyte, 2 * megabyte, 5 * megabyte, append([]string{"k8s.io/", "dagger.io/"}, engines...)},
	"atoll-dagger":        {"", whole, 22 * megabyte, 2 * megabyte, 4 * megabyte, append([]string{"k8s.io/", "github.com/modal-labs/"}, engines[:4]...)},
	"atoll-provider-test": {"", whole, 20 * megabyte, 2 * megabyte, 5 * megabyte, append(append([]string{}, remote...), engines...)},
	"atoll-guest":         {"", whole, 11 * megabyte, megabyte, 3 * megabyte, append(append([]string{}, remote...), engines...)},
}

// Each program links what it needs.
func TestProgramsLinkWhatTheyNeed(t *testing.T) {
	for name, p := range programs {
		// -e: the embedded files may be missing.
		out, err := exec.Command("go", "list", "-e", "-deps", "-tags="+p.tags, "./"+cmp.Or(p.from, name)).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for path := range strings.Lines(string(out)) {
			for _, never := range p.never {
				if path = strings.TrimSpace(path); strings.HasPrefix(path+" ", never) {
					t.Errorf("%s links %s", name, path)
				}
			}
		}
	}
}

// Each program has the size that it may have, and does little before main.
func TestProgramsAreSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds all programs")
	}
	dir := t.TempDir()
	build := exec.Command("make", "-C", "..", "build", "BIN="+dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v: %s", err, out)
	}
	var needed int64
	for name, p := range programs {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if name == "atoll" || name == "atoll-server" {
			needed += info.Size()
		}
		if info.Size() > p.size {
			t.Errorf("%s has %d bytes, want %d at most", name, info.Size(), p.size)
		}
		if n := allocatedByInits(t, filepath.Join(dir, name)); n > p.inits {
			t.Errorf("the initialisers of %s allocate %d bytes, want %d at most", name, n, p.inits)
		}
		if own := memoryAtVersion(t, filepath.Join(dir, name)); own > p.own {
			t.Errorf("%s has %d bytes of memory of its own, want %d at most", name, own, p.own)
		}
	}
	if needed > mostOnDisk {
		t.Errorf("atoll and atoll-server have %d bytes, want %d at most", needed, mostOnDisk)
	}
	t.Run("starts", func(t *testing.T) { checkStarts(t, dir) })
}

var initLine = regexp.MustCompile(`(?m)^init \S+ @\S+ ms, \S+ ms clock, (\d+) bytes`)

// allocatedByInits returns how many bytes the initialisers of a program allocate.
func allocatedByInits(t *testing.T, path string) (n int64) {
	t.Helper()
	cmd := exec.Command(path, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace bytes.Buffer
	cmd.Stderr = &trace
	_ = cmd.Run() // a plugin is not to be started by hand, and says so
	for _, m := range initLine.FindAllStringSubmatch(trace.String(), -1) {
		bytes, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes
	}
	if n == 0 {
		t.Errorf("%s traces no initialiser: %s", path, trace.String())
	}
	return n
}
