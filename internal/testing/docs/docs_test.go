//go:build linux

// Package docs_test checks README.md and the manual: commands and programs work, settings are valid, links lead somewhere,
// and the table of providers matches the providers.
//
//	go test ./internal/testing/docs -update
//
// updates the table.
package docs_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/config/stack"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/tests3"
	"github.com/seed46cd37a8/atoll/provider/kubernetes"
)

const (
	top    = "../../../"
	readme = top + "README.md"
	table  = top + "docs/providers/index.md"
	begin  = "<!-- providers: written by go test ./internal/testing/docs -update -->\n"
	end    = "<!-- end -->\n"
)

var update = flag.Bool("update", false, "write the table of providers into the manual")

// infoVar is a variable with the name of a provider. If it is set, the test binary prints the
// provider's Info, so that a test can get it as another user.
const infoVar = "ATOLL_DOCS_INFO"

func TestMain(m *testing.M) {
	if name := os.Getenv(infoVar); name != "" {
		if err := printInfo(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func printInfo(name string) error {
	dir, err := os.MkdirTemp("", "atoll")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if name == "kubernetes" { // without a cluster: assume a network that enforces policies
		return json.NewEncoder(os.Stdout).Encode((&kubernetes.Options{Enforced: true}).Info())
	}
	b, err := stack.NewBuilder(&config.Config{StateDir: dir, Provider: name})
	if err != nil {
		return err
	}
	p, err := b.Open(stack.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	return json.NewEncoder(os.Stdout).Encode(p.Info())
}

// infoOf returns the Info of a provider for a user.
func infoOf(t *testing.T, name string, uid uint32) atoll.Info {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = []string{infoVar + "=" + name, "TMPDIR=/tmp", "HOME=/", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s as %d: %v\n%s", name, uid, err, out)
	}
	var info atoll.Info
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	return info
}

// A column is one column of the table.
type column struct {
	title string
	info  atoll.Info
}

// rows are the rows of the table.
var rows = []struct {
	what string
	of   func(i atoll.Info) any
}{
	{"isolation", func(i atoll.Info) any { return isolation[i.Isolation] }},
	{"outlives the process that made it", func(i atoll.Info) any { return i.Caps.Survives }},
	{"commands are found again after that", func(i atoll.Info) any { return i.Caps.Reattach }},
	{"stopped ones start again", func(i atoll.Info) any { return i.Caps.Restart }},
	{"root file system after stop and start", func(i atoll.Info) any { return durable[i.Caps.Durable] }},
	{"terminals", func(i atoll.Info) any { return i.Caps.TTY }},
	{"files in and out", func(i atoll.Info) any { return i.Caps.Files }},
	{"connections to ports inside", func(i atoll.Info) any { return i.Caps.Dial }},
	{"stopped when nobody uses it", func(i atoll.Info) any { return i.Caps.IdleStop }},
	{"time to live can be extended", func(i atoll.Info) any { return i.Caps.Extend }},
	{"says which signal ended a process", func(i atoll.Info) any { return i.Caps.ExitSignal }},
	{"pause, resume", func(i atoll.Info) any { return i.Caps.Pause }},
	{"snapshots and forks of running sandboxes", func(i atoll.Info) any { return i.Caps.Snapshot }},
	{"usage", func(i atoll.Info) any { return i.Caps.Usage }},
	{"OCI images", func(i atoll.Info) any { return i.Caps.Images }},
	{"images listed and removed", func(i atoll.Info) any { return i.Caps.ImageStore }},
	{"users other than the default", func(i atoll.Info) any { return i.Caps.Users }},
	{"bind mounts", func(i atoll.Info) any { return i.Caps.BindMounts }},
	{"volumes", func(i atoll.Info) any { return i.Caps.Volumes }},
	{"file locks on a volume exclude other sandboxes", func(i atoll.Info) any { return i.Caps.VolumeLocks }},
	{"tmpfs", func(i atoll.Info) any { return i.Caps.Tmpfs }},
	{"read-only root", func(i atoll.Info) any { return i.Caps.ReadOnlyRoot }},
	{"memory limit", func(i atoll.Info) any { return i.Caps.MemoryLimit }},
	{"CPU limit", func(i atoll.Info) any { return i.Caps.CPULimit }},
	{"process limit", func(i atoll.Info) any { return i.Caps.ProcessLimit }},
	{"disk limit", func(i atoll.Info) any {
		if i.Caps.DiskWatch {
			return "ends programs"
		}
		return i.Caps.DiskLimit
	}},
	{"no network, enforced", func(i atoll.Info) any { return i.Caps.NetworkNone }},
	{"network, without the host's", func(i atoll.Info) any { return i.Caps.NetworkOn }},
	{"network to listed hosts only", func(i atoll.Info) any { return i.Caps.Egress }},
	{"networks of the engine's, by name", func(i atoll.Info) any { return i.Caps.NetworkNamed }},
	{"ports published on loopback", func(i atoll.Info) any { return i.Caps.Publish }},
	{"a cache for each project", func(i atoll.Info) any { return i.Caps.Cache }},
	{"GPUs, where the machine has any", func(i atoll.Info) any { return i.Caps.GPU }},
}

var isolation = map[atoll.Isolation]string{
	atoll.IsolationNone: "none", atoll.IsolationProfile: "a profile of the host's kernel", atoll.IsolationContainer: "the host's kernel, namespaces",
	atoll.IsolationKernel: "a kernel of its own", atoll.IsolationVM: "a virtual machine",
}

var durable = map[atoll.Durability]string{
	atoll.DurableNone: "gone", atoll.DurableStop: "kept", atoll.DurableCrash: "kept, after a crash too",
}

func renderTable(columns []column) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(columns)) + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.what)
		for _, c := range columns {
			cell := r.of(c.info)
			switch cell {
			case true:
				cell = "yes"
			case false:
				cell = "-"
			}
			fmt.Fprintf(&b, " %v |", cell)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The table of providers matches the providers. Their caps depend on the user and the machine, so the
// test needs a machine on which all of them are available.
func TestProviderTable(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.Cgroups)
	testenv.Plugins(t, "modal") // kubernetes needs a cluster, so this program answers for it
	const nobody = 65534
	var columns []column
	for _, e := range config.Providers() {
		columns = append(columns, column{e.Name, infoOf(t, e.Name, 0)})
		if e.Name == config.DefaultProvider("linux") || e.HostKernel { // its sandboxes can do less for an ordinary user
			columns = append(columns, column{e.Name + ", not as root", infoOf(t, e.Name, nobody)})
		}
	}
	text := readFile(t, table)
	before, rest, ok := strings.Cut(text, begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no %q and %q", table, begin, end)
	}
	want := renderTable(columns)
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s: the table of providers is outdated; run go test ./internal/testing/docs -update\ngot\n%s\nwant\n%s", table, got, want)
	}
	if err := os.WriteFile(table, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newShell returns a function that makes shell commands. They find Atoll only in bin, and no settings
// or sandboxes: each of variables names an empty directory.
func newShell(t *testing.T, variables ...string) func(command string) *exec.Cmd {
	t.Helper()
	empty, err := os.MkdirTemp("", "atoll")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(empty) })
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "XDG_STATE_HOME=") || strings.HasPrefix(kv, "XDG_CONFIG_HOME=") || strings.HasPrefix(kv, "ATOLL_")
	})
	env = append(env, "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"), "XDG_RUNTIME_DIR="+empty)
	for _, name := range variables {
		env = append(env, name+"="+empty)
	}
	return func(command string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = root, env
		return cmd
	}
}

// README.md is one page.
func TestReadmeIsShort(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(readFile(t, readme), "\n"), "\n")
	if len(lines) > 150 {
		t.Errorf("README.md has %d lines, want at most 150: the rest belongs in the manual", len(lines))
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line) > 120 {
			t.Errorf("README.md:%d has more than 120 characters", i+1)
		}
	}
}

// firstCommand returns the command in README.md that builds and runs Atoll.
func firstCommand(t *testing.T) string {
	t.Helper()
	_, rest, ok := strings.Cut(readFile(t, readme), "```sh\n")
	command, _, _ := strings.Cut(rest, "\n```")
	if !ok || strings.Contains(command, "\n") || !strings.Contains(command, " && bin/atoll run ") {
		t.Fatalf("README.md begins with %q, want one line that builds and runs Atoll", command)
	}
	return command
}

// The first command builds Atoll and has the documented result.
func TestFirstCommand(t *testing.T) {
	command, sh := firstCommand(t), newShell(t, "XDG_STATE_HOME", "XDG_CONFIG_HOME")
	var stdout, stderr strings.Builder
	cmd := sh(command)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the test checks the exit code
	if cmd.ProcessState.ExitCode() == 125 {
		if why, err := sh("bin/atoll doctor").CombinedOutput(); err != nil {
			t.Skipf("gVisor does not work here: %s", why)
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != 3 || stdout.String() != "42\n" {
		t.Errorf("%s\ngot exit code %d, stdout %q, want 3 and 42; stderr:\n%s", command, got, stdout.String(), stderr.String())
	}
}

// The commands about object storage work with a service.
func TestSyncService(t *testing.T) {
	endpoint := tests3.Versity(t)
	buildAtoll(t)
	var settings, commands string
	for _, b := range blocksOf(readFile(t, top+"docs/file-sync.md")) {
		switch {
		case b.language == "yaml" && settings == "" && strings.Contains(b.text, "S3_SECRET_KEY"):
			settings = b.text
		case b.language == "sh" && settings != "" && commands == "":
			commands = b.text
		}
	}
	for from, to := range map[string]string{"my-bucket": tests3.Bucket, "https://s3.example.org": endpoint} {
		if !strings.Contains(settings, from) {
			t.Fatalf("docs/file-sync.md does not show %s", from)
		}
		settings = strings.ReplaceAll(settings, from, to)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"config.yaml": settings, "web/file": "one\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines := fmt.Sprintf("set -e\ncd %s\nexport ATOLL_CONFIG=%[1]s/config.yaml S3_ACCESS_KEY=%s S3_SECRET_KEY=%s\n%s\nrm web/file\natoll sync pull web\ncat web/file",
		dir, tests3.AccessKey, tests3.SecretKey, strings.ReplaceAll(commands, "web:/work", "web"))
	if out, err := newShell(t, "HOME")(lines).CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "\none\n") {
		t.Errorf("%s\n%v, %s", lines, err, out)
	}
}

// The Go program of the manual equals examples/library.
func TestLibraryProgram(t *testing.T) {
	program := readFile(t, top+"examples/library/main.go")
	_, body, ok := strings.Cut(program, "package main\n")
	if !ok || !strings.Contains(readFile(t, top+"docs/library.md"), "```go\npackage main\n"+body+"```\n") {
		t.Errorf("docs/library.md does not show\npackage main\n%s", body)
	}
}

// heading matches a heading of a page, and notAnchor what its anchor leaves out.
var (
	heading   = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// hasAnchor reports whether a page has a heading with that anchor.
func hasAnchor(text, anchor string) bool {
	return slices.ContainsFunc(heading.FindAllStringSubmatch(text, -1), func(m []string) bool {
		return strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor
	})
}

// All files and headings that documents link to exist.
func TestLinks(t *testing.T) {
	for _, document := range append(listPages(t), "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/adr/README.md") {
		text := readFile(t, top+document)
		for _, part := range strings.Split(text, "](")[1:] {
			link, _, _ := strings.Cut(part, ")")
			target, anchor, _ := strings.Cut(link, "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := top + document
			if target != "" {
				path = filepath.Join(filepath.Dir(path), target)
			}
			data, err := os.ReadFile(path)
			if info, statErr := os.Stat(path); statErr == nil && info.IsDir() && anchor == "" {
				continue
			}
			if err != nil || anchor != "" && !hasAnchor(string(data), anchor) {
				t.Errorf("%s links to %s: %v", document, link, cmp.Or(err, errors.New("no such heading")))
			}
		}
	}
}

// The index of decisions lists all decisions.
func TestDecisions(t *testing.T) {
	const dir = top + "docs/adr/"
	index := readFile(t, dir+"README.md")
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := file.Name(); name != "README.md" && strings.Count(index, "]("+name+")") != 1 {
			t.Errorf("docs/adr/README.md does not list %s once", name)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
