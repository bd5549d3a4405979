//go:build linux

package mac_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/native/internal/mac"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// writeProgram writes a program with the arguments of sandbox-exec that makes no wall. It stores the profile in the file profile
// beside it.
func writeProgram(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "sandbox-exec")
	script := "#!/bin/sh\n[ \"$1\" = -p ] || exit 64\nprintf %s \"$2\" > \"${0%/*}/profile\"\nshift 2\nexec \"$@\"\n"
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func open(t testing.TB, opts mac.Options) *mac.Provider {
	t.Helper()
	p, err := mac.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// fresh returns options for a provider without walls in an empty directory.
func fresh(t testing.TB) mac.Options {
	t.Helper()
	return mac.Options{Dir: t.TempDir(), Program: writeProgram(t), Unchecked: true}
}

func create(t testing.TB, p atoll.Provider, spec *atoll.Spec) atoll.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func output(t testing.TB, sb atoll.Sandbox, script string) string {
	t.Helper()
	out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// The promises that need no wall hold.
func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		p, err := mac.New(fresh(t))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, providertest.Only("create", "exec", "output", "tty", "restart", "remove", "volumes"),
		providertest.SkipRest("a Mac has to run the others, and those of walls"))
}

// A program that cannot start has the same kind of error as without a wall around it.
func TestStartErrors(t *testing.T) {
	sb := create(t, open(t, fresh(t)), &atoll.Spec{})
	for name, text := range map[string]string{"plain": "no program", "orphaned": "#!/no/such/interpreter\n"} {
		mode := uint32(0o644)
		if name == "orphaned" {
			mode = 0o755
		}
		if err := atoll.WriteFile(t.Context(), sb, name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]atoll.Kind{"nope": atoll.ErrCommandNotFound, "./plain": atoll.ErrExecFailed, "./orphaned": atoll.ErrCommandNotFound} {
		if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{name}}); atoll.KindOf(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// The wall of a sandbox opens its own directories and volumes, the configured paths, and a network only if it has one.
func TestWall(t *testing.T) {
	opts := fresh(t)
	source := t.TempDir()
	opts.HostPaths, opts.HostNetwork = []string{source}, true
	p := open(t, opts)
	for _, mode := range []atoll.NetworkMode{"", atoll.NetworkOn} {
		sb := create(t, p, &atoll.Spec{
			Network: atoll.Network{Mode: mode},
			Mounts:  []atoll.Mount{{Type: atoll.MountVolume, Source: "cache", Target: "/work/deep/cache"}},
		})
		output(t, sb, "true")
		b, err := os.ReadFile(filepath.Join(filepath.Dir(opts.Program), "profile"))
		if err != nil {
			t.Fatal(err)
		}
		profile := string(b)
		for _, dir := range []string{"volumes/default/data-" + sb.ID(), "volumes/default/cache", "tmp/" + sb.ID()} {
			if line := fmt.Sprintf("(allow network-bind (local unix-socket (subpath \"%s\")))", filepath.Join(opts.Dir, dir)); !strings.Contains(profile, line) {
				t.Errorf("%s is not writable:\n%s", dir, profile)
			}
		}
		if !strings.Contains(profile, `(subpath "`+source+`")`) {
			t.Errorf("the configured path is closed:\n%s", profile)
		}
		if got, want := strings.Contains(profile, `(remote ip "*:*")`), mode == atoll.NetworkOn; got != want {
			t.Errorf("network %q: open %v, want %v", mode, got, want)
		}
	}
}

// TMPDIR is a directory of the sandbox, which exists while it runs.
func TestTempDir(t *testing.T) {
	sb := create(t, open(t, fresh(t)), &atoll.Spec{})
	dir := output(t, sb, `touch "$TMPDIR/file" && echo "$TMPDIR"`)
	if !strings.HasSuffix(dir, "/tmp/"+sb.ID()) {
		t.Errorf("TMPDIR is %s", dir)
	}
	if err := sb.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s exists after a stop: %v", dir, err)
	}
	if err := sb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	output(t, sb, `test -d "$TMPDIR" && test ! -e "$TMPDIR/file"`)
}

// No command runs before a wall has passed its test.
func TestNoWallNoCommand(t *testing.T) {
	opts := fresh(t)
	opts.Unchecked = false
	missing := opts
	missing.Program = "/no/such/program"
	for want, opts := range map[string]mac.Options{"the wall has a hole": opts, "/no/such/program does not exist": missing} {
		p := open(t, opts)
		if probe := p.Probe(t.Context()); probe.OK || !strings.Contains(probe.Reason, want) || probe.Fix == "" {
			t.Errorf("probe: %+v, want %q", probe, want)
		}
		sb := create(t, p, &atoll.Spec{})
		if _, err := sb.Exec(t.Context(), &atoll.Command{Args: []string{"true"}}); !errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("exec: %v, want %q", err, want)
		}
		if _, err := p.Create(t.Context(), &atoll.Spec{Cmd: []string{"true"}}); !errors.Is(err, atoll.ErrUnavailable) {
			t.Errorf("create with a main process: %v", err)
		}
	}
}

// The probe says what the wall is and what it lacks.
func TestProbe(t *testing.T) {
	opts := fresh(t)
	opts.HostNetwork = true
	probe := open(t, opts).Probe(t.Context())
	notes := strings.Join(probe.Notes, "\n")
	for _, want := range []string{"Seatbelt", "deprecated", "have not run it", "not enforced", "native.host_network"} {
		if !probe.OK || !strings.Contains(notes, want) {
			t.Errorf("%+v, want a note with %q", probe, want)
		}
	}
}

// Requests that the provider cannot fulfil are refused with advice.
func TestUnsupported(t *testing.T) {
	closed, opened := open(t, fresh(t)), fresh(t)
	opened.HostNetwork = true
	on := atoll.Network{Mode: atoll.NetworkOn}
	for _, spec := range []atoll.Spec{
		{Image: "ubuntu"},
		{User: "12345"},
		{ReadOnlyRoot: true},
		{Mounts: []atoll.Mount{{Type: atoll.MountBind, Source: "/opt", Target: "/opt"}}},
		{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/x"}}},
		{Resources: atoll.Resources{Memory: 1 << 30}},
		{Resources: atoll.Resources{CPUs: 1}},
		{Resources: atoll.Resources{Processes: 10}},
		{Resources: atoll.Resources{Disk: 1 << 30}},
		{Network: on},
		{Network: atoll.Network{Mode: atoll.NetworkEgress, Allow: []string{"example.com"}}},
		{Network: atoll.Network{Mode: atoll.NetworkNamed, Name: "lan"}},
		{IdleStop: atoll.Duration(1e9)},
	} {
		_, err := closed.Create(t.Context(), &spec)
		if !errors.Is(err, atoll.ErrUnsupported) || strings.Count(err.Error(), ": ") < 2 {
			t.Errorf("%+v: %v, want ErrUnsupported with advice", spec, err)
		}
	}
	p := open(t, opened)
	if _, err := p.Create(t.Context(), &atoll.Spec{Network: on}); err != nil {
		t.Errorf("with host_network: %v", err)
	}
	on.Allow = []string{"192.168.0.0/16"}
	if _, err := p.Create(t.Context(), &atoll.Spec{Network: on}); !errors.Is(err, atoll.ErrUnsupported) || !strings.Contains(err.Error(), "--allow") {
		t.Errorf("a list of hosts: %v", err)
	}
}

// Keys, passwords and other sandboxes cannot be opened by host_paths.
func TestHostPaths(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	opts := fresh(t)
	for path, ok := range map[string]bool{
		home:                               true,
		filepath.Join(home, "src"):         true,
		filepath.Join(home, ".ssh"):        false,
		filepath.Join(home, ".ssh/config"): false,
		filepath.Join(home, ".sshx"):       true,
		filepath.Join(home, "Library/Keychains/login.keychain-db"): false,
		"/Library/Keychains":               false,
		opts.Dir:                           false,
		filepath.Join(opts.Dir, "volumes"): false,
		"/":                                false,
		"/a\nb":                            false,
	} {
		opts := opts
		opts.HostPaths = []string{path}
		p, err := mac.New(opts)
		if (err == nil) != ok || err != nil && !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("%q: %v, want ok %v", path, err, ok)
		}
		if p != nil {
			p.Close()
		}
	}
	if _, err := mac.New(mac.Options{}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("without a directory: %v", err)
	}
}

// Ports can be reached only if the sandbox has a network, and its status says so.
func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	opts := fresh(t)
	opts.HostNetwork = true
	p := open(t, opts)
	for _, mode := range []atoll.NetworkMode{"", atoll.NetworkOn} {
		sb := create(t, p, &atoll.Spec{Network: atoll.Network{Mode: mode}})
		c, err := atoll.Dial(t.Context(), sb, port)
		if err == nil {
			c.Close()
		}
		want := mode == atoll.NetworkOn
		if (err == nil) != want || err != nil && !errors.Is(err, atoll.ErrUnsupported) {
			t.Errorf("network %q: %v", mode, err)
		}
		if st, err := sb.Status(t.Context()); err != nil || st.Caps.Dial != want {
			t.Errorf("network %q: the status has dial %v, %v", mode, st.Caps.Dial, err)
		}
	}
}
