package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A debian is a package of Debian that tests need.
type debian struct {
	name  string
	there func() bool // reports whether the machine has its programs
}

// debians are the packages that the check installs as root if the machine lacks their programs.
var debians = []debian{
	{"bubblewrap", programThere("bwrap")},
	{"busybox-static", func() bool { return staticProgram("/bin/busybox") || staticProgram("/usr/bin/busybox") }},
	{"containernetworking-plugins", func() bool { return fileExists("/usr/lib/cni/bridge") }},
	{"cpio", programThere("cpio")},
	{"curl", programThere("curl")},
	{"dbus-daemon", programThere("dbus-daemon")},
	{"debootstrap", programThere("debootstrap")},
	{"dnsmasq-base", programThere("dnsmasq")},
	{"docker.io", programThere("dockerd")},
	{"gcc", compilesC},
	{"git", programThere("git")},
	{"gnome-keyring", programThere("gnome-keyring-daemon")},
	{"iptables", programThere("iptables")},
	{"libc6-dev", compilesC},
	{"mandoc", programThere("mandoc")},
	{"mmdebstrap", programThere("mmdebstrap")},
	{"nftables", programThere("nft")},
	{"npm", programThere("npm")},
	{"openssh-client", programThere("ssh", "sftp", "scp")},
	{"openssh-sftp-server", func() bool { return fileExists("/usr/lib/openssh/sftp-server") }},
	{"postgresql", func() bool { return fileExists("/usr/lib/postgresql/*/bin/initdb") || programThere("initdb")() }},
	{"python3-venv", func() bool { return exec.Command("python3", "-c", "import ensurepip, venv").Run() == nil }},
	{"qemu-system-x86", programThere("qemu-system-x86_64")},
	{"rpm", programThere("rpm")},
	{"runc", programThere("runc")},
	{"shellcheck", programThere("shellcheck")},
	{"squashfs-tools", programThere("sqfstar")},
	{"sshfs", programThere("sshfs", "fusermount3")},
	{"uidmap", programThere("newuidmap", "newgidmap")},
}

func programThere(names ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(names, func(name string) bool { _, err := exec.LookPath(name); return err != nil })
	}
}

func fileExists(pattern string) bool {
	found, err := filepath.Glob(pattern)
	return err == nil && len(found) > 0
}

func staticProgram(path string) bool {
	program, err := os.ReadFile(path)
	return err == nil && !bytes.Contains(program, []byte("/ld-linux"))
}

// compilesC reports whether there is a C compiler with its library, which the race detector needs.
var compilesC = sync.OnceValue(func() bool {
	cmd := exec.Command("gcc", "-x", "c", "-o", os.DevNull, "-")
	cmd.Stdin = strings.NewReader("int main(void) { return 0; }")
	return cmd.Run() == nil
})

// installPackages installs the missing packages with apt. For an ordinary user it prints their names;
// the tests that need them skip themselves.
func installPackages(ctx context.Context) error {
	var missing []string
	for _, d := range debians {
		if !d.there() {
			missing = append(missing, d.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		fmt.Println("not installed, and only root can install them:", strings.Join(missing, " "))
		return nil
	}
	fmt.Println("installing", strings.Join(missing, " "))
	options := []string{"-qq", "-o", "Acquire::Retries=3"}
	if err := runQuietly(ctx, "apt-get", append([]string{"update"}, options...)...); err != nil {
		return err
	}
	return runQuietly(ctx, "apt-get", append(append([]string{"install", "-y", "--no-install-recommends"}, options...), missing...)...)
}

// runQuietly runs a program and shows its output only if it fails.
func runQuietly(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// A builder runs the scripts that build programs and images for tests, each at most once. The results
// stay in the user's cache directory, by a hash of their sources.
type builder struct {
	built sync.Map // of *sync.Once, by the name of the script

	mu    sync.Mutex
	busy  int           // the scripts that run
	since time.Time     // when the first of them began
	spent time.Duration // in which scripts ran, without those that run now
}

// beginScript counts a script that begins.
func (b *builder) beginScript() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy == 0 {
		b.since = time.Now()
	}
	b.busy++
}

// endScript counts a script that has ended.
func (b *builder) endScript() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy--; b.busy == 0 {
		b.spent += time.Since(b.since)
	}
}

// timeSpent returns the time in which at least one script ran.
func (b *builder) timeSpent() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy > 0 {
		return b.spent + time.Since(b.since)
	}
	return b.spent
}

// rootBuilds need root.
var rootBuilds = []string{"debian", "bundle", "kube", "agent-sandbox", "dagger"}

// runScripts runs the scripts by those names and waits for them. It reports a script that fails and
// goes on: the tests that need its result fail or skip themselves.
func (b *builder) runScripts(ctx context.Context, names []string) {
	for _, name := range names {
		if os.Geteuid() != 0 && slices.Contains(rootBuilds, name) {
			continue
		}
		once, _ := b.built.LoadOrStore(name, new(sync.Once))
		once.(*sync.Once).Do(func() {
			b.beginScript()
			defer b.endScript()
			if err := runScript(ctx, name); err != nil {
				fmt.Println(err)
			}
		})
	}
}

// runScript runs scripts/name, three times at most, because a download may fail.
func runScript(ctx context.Context, name string) error {
	begin := time.Now()
	err := runQuietly(ctx, "./scripts/"+name)
	for _, pause := range []time.Duration{10 * time.Second, 30 * time.Second} {
		if err == nil {
			break
		}
		fmt.Printf("%v\ntrying again in %s\n", err, pause)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		err = runQuietly(ctx, "./scripts/"+name)
	}
	if took := time.Since(begin); err == nil && took > 5*time.Second {
		fmt.Printf("built    %7.1fs  scripts/%s\n", took.Seconds(), name)
	}
	return err
}
