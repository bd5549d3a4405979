// Package testenv declares the parts that tests need on a machine, and skips or fails a test if a part
// is missing.
//
// There are two kinds of parts. An installable part is missing by mistake: the test is skipped on a
// developer's machine and fails with CI=true, since make test installs the part. Other parts depend on
// the kernel or on the caller's privileges: without them, the test is skipped everywhere. In both
// cases the reason is printed, and make test lists it.
//
//	func TestOwners(t *testing.T) {
//		testenv.Need(t, testenv.Root)
//		...
package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Part is something that a test needs and that not every machine has.
type Part struct {
	what    string
	install string       // the Debian package that has it; "" if there is none
	script  string       // the script that builds it, if no package has it
	missing func() error // returns nil if the part exists
}

// Parts of a machine.
var (
	// Root is the privilege to change owners, mount and create namespaces.
	Root = Part{what: "root", missing: func() error {
		if uid := os.Geteuid(); uid != 0 {
			return fmt.Errorf("running as uid %d", uid)
		}
		return nil
	}}
	// Cgroups is the right to create cgroups that limit memory.
	Cgroups = Part{what: "a writable cgroup with the memory controller", missing: checkCgroups}
	// DebianTree is the archive that scripts/debian builds. The script needs root.
	DebianTree = Part{what: "a Debian tree", install: "debootstrap, and run scripts/debian", missing: func() error {
		_, err := debianPath()
		return err
	}}
	// MCPPrograms are the programs that scripts/node installs. The script needs npm.
	MCPPrograms = Part{what: "the programs that check MCP servers", install: "npm, and run scripts/node", missing: func() error {
		_, err := mcpPrograms()
		return err
	}}
	// S3Servers are the servers that scripts/s3 builds.
	S3Servers = Part{what: "servers that speak S3", script: "scripts/s3", missing: func() error {
		_, err := s3Server("versitygw")
		return err
	}}
	// DynamoDBServer is the server that scripts/node installs. The script needs npm.
	DynamoDBServer = Part{what: "a server that speaks like DynamoDB", install: "npm, and run scripts/node", missing: func() error {
		_, _, err := dynalitePrograms()
		return err
	}}
	// WebClients are the libraries of web pages that scripts/node installs. The script needs npm.
	WebClients = Part{what: "the AI SDK and an EventSource", install: "npm, and run scripts/node", missing: func() error {
		_, _, err := webClients()
		return err
	}}
	// SiteGenerator is VitePress, which scripts/node installs, and the node in PATH that runs it. The script needs npm.
	SiteGenerator = Part{what: "VitePress", install: "npm, and run scripts/node", missing: func() error {
		_, err := vitePress()
		return err
	}}
	// StaticBusybox is a busybox that needs no libraries.
	StaticBusybox = Part{what: "a static busybox", install: "busybox-static", missing: func() error {
		_, err := busyboxPath()
		return err
	}}
)

// Program returns the part of a program in PATH that the Debian package pkg installs.
func Program(name, pkg string) Part {
	return Part{what: name, install: pkg, missing: func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Agent returns the part of an agent's program in PATH, such as claude. Nothing installs it, since the
// user has to accept its licence.
func Agent(name string) Part {
	return Part{what: name + " in PATH, which the user has to install", missing: func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Need skips or fails the test unless all parts exist.
func Need(t testing.TB, parts ...Part) {
	t.Helper()
	for _, p := range parts {
		err := p.missing()
		switch {
		case err == nil:
		case p.installHint() != "" && os.Getenv("CI") == "true":
			t.Fatalf("needs %s: %v; %s", p.what, err, p.installHint())
		case p.installHint() != "":
			t.Skipf("needs %s: %v; %s", p.what, err, p.installHint())
		default:
			t.Skipf("needs %s: %v", p.what, err)
		}
	}
}

// installHint returns the command that installs the part, or "".
func (p Part) installHint() string {
	switch {
	case p.script != "":
		return "run " + p.script
	case p.install != "":
		return "apt-get install " + p.install
	}
	return ""
}

// Busybox needs StaticBusybox and returns its path.
func Busybox(t testing.TB) string {
	t.Helper()
	Need(t, StaticBusybox)
	path, err := busyboxPath()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func busyboxPath() (string, error) {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox"} {
		program, err := os.ReadFile(path)
		if err == nil && isStatic(program) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no static busybox in /bin or /usr/bin")
}

// Debian needs DebianTree and returns its path: a tar archive with the root file system of a Debian
// with python3.
func Debian(t testing.TB) string {
	t.Helper()
	Need(t, DebianTree)
	path, err := debianPath()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func debianPath() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "bookworm-python3.tar")
	_, err = os.Stat(path)
	return path, err
}

// NodePrograms needs MCPPrograms and returns their directory, with node, conformance and
// mcp-inspector.
func NodePrograms(t testing.TB) string {
	t.Helper()
	Need(t, MCPPrograms)
	path, err := mcpPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func mcpPrograms() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "mcp", "node_modules", ".bin")
	_, err = os.Stat(filepath.Join(path, "node"))
	return path, err
}

// WebModules needs WebClients and returns the paths of node, and of a directory with the libraries:
// ai and eventsource.
func WebModules(t testing.TB) (node, dir string) {
	t.Helper()
	Need(t, WebClients)
	node, dir, err := webClients()
	if err != nil {
		t.Fatal(err)
	}
	return node, dir
}

func webClients() (node, dir string, err error) {
	bin, err := mcpPrograms()
	if err != nil {
		return "", "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	dir = filepath.Join(cache, "atoll-test", "web", "node_modules")
	_, err = os.Stat(filepath.Join(dir, "ai", "package.json"))
	return filepath.Join(bin, "node"), dir, err
}

// VitePress needs SiteGenerator and returns the directory of npm's modules, with vitepress.
func VitePress(t testing.TB) string {
	t.Helper()
	Need(t, SiteGenerator)
	dir, err := vitePress()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func vitePress() (string, error) {
	if _, err := exec.LookPath("node"); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "atoll-test", "site", "node_modules")
	_, err = os.Stat(filepath.Join(dir, "vitepress", "package.json"))
	return dir, err
}

// S3Server needs S3Servers and returns the path of one: versitygw, which implements the guarantees of
// S3, or gofakes3, which does not.
func S3Server(t testing.TB, name string) string {
	t.Helper()
	Need(t, S3Servers)
	path, err := s3Server(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func s3Server(name string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "s3", name)
	_, err = os.Stat(path)
	return path, err
}

// isStatic reports whether a program needs no libraries. One that does contains the name of their
// loader.
func isStatic(program []byte) bool {
	return !bytes.Contains(program, []byte("/ld-linux")) && !bytes.Contains(program, []byte("/ld-musl"))
}

// checkCgroups creates and removes a group. There is no other way to know: a file system mounted
// read-only looks writable to root.
func checkCgroups() error {
	root := "/sys/fs/cgroup"
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	switch {
	case err != nil:
		root = filepath.Join(root, "memory") // v1
	case !slices.Contains(strings.Fields(string(controllers)), "memory"):
		return fmt.Errorf("%s: no memory controller", root)
	}
	dir, err := os.MkdirTemp(root, "atoll-testenv-")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}
