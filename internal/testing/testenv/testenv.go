// Package testenv says what a test needs of the machine, and what becomes of
// the test where that is missing.
//
// There are two sorts of part. What can be installed is missing by mistake: the
// test is skipped on a developer's machine, and fails where CI=true, since
// make test installs it. A part that the kernel or the caller's privileges do not
// give is a fact of the machine: the test is skipped everywhere. Either way the
// reason is printed, and make test lists it.
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
	install string       // the Debian package that brings it; "" when nothing does
	script  string       // that makes it, where no package does
	missing func() error // nil when it is there
}

// The parts.
var (
	// Root is the privilege to change owners, mount and make namespaces.
	Root = Part{what: "root", missing: func() error {
		if uid := os.Geteuid(); uid != 0 {
			return fmt.Errorf("this is uid %d", uid)
		}
		return nil
	}}
	// Cgroups is the right to make cgroups that limit memory.
	Cgroups = Part{what: "a writable cgroup with the memory controller", missing: checkCgroups}
	// DebianTree is what scripts/debian makes, which needs root.
	DebianTree = Part{what: "a Debian tree", install: "debootstrap, and run scripts/debian", missing: func() error {
		_, err := debianPath()
		return err
	}}
	// MCPPrograms are what scripts/node installs, which needs npm.
	MCPPrograms = Part{what: "the programs that check MCP servers", install: "npm, and run scripts/node", missing: func() error {
		_, err := mcpPrograms()
		return err
	}}
	// S3Servers are what scripts/s3 builds.
	S3Servers = Part{what: "servers that speak S3", script: "scripts/s3", missing: func() error {
		_, err := s3Server("versitygw")
		return err
	}}
	// DynamoDBServer is what scripts/node installs, which needs npm.
	DynamoDBServer = Part{what: "a server that speaks like DynamoDB", install: "npm, and run scripts/node", missing: func() error {
		_, _, err := dynalitePrograms()
		return err
	}}
	// StaticBusybox is a busybox that runs where there are no libraries.
	StaticBusybox = Part{what: "a static busybox", install: "busybox-static", missing: func() error {
		_, err := busyboxPath()
		return err
	}}
)

// Program is the part of having a program in PATH that the Debian package pkg
// brings.
func Program(name, pkg string) Part {
	return Part{what: name, install: pkg, missing: func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Agent is the part of having the program of an agent in PATH, like claude. Nothing
// installs it: it is its user's, under a licence of its own.
func Agent(name string) Part {
	return Part{what: name + " in PATH, which is the user's to install", missing: func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Need goes on only where all parts are there.
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

// installHint is what brings the part; "" when nothing does.
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
	return "", fmt.Errorf("there is none in /bin or /usr/bin")
}

// Debian needs DebianTree and returns its path: a tar archive with the root file
// system of a Debian that has python3.
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

// NodePrograms needs MCPPrograms and returns the directory that they are in: node,
// conformance and mcp-inspector.
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

// S3Server needs S3Servers and returns the path of one: versitygw, which keeps what
// S3 promises, or gofakes3, which does not.
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

// isStatic reports whether a program needs no libraries: one that does names
// their loader.
func isStatic(program []byte) bool {
	return !bytes.Contains(program, []byte("/ld-linux")) && !bytes.Contains(program, []byte("/ld-musl"))
}

// checkCgroups makes and removes a group, which alone tells: a file system mounted
// read-only looks writable to root.
func checkCgroups() error {
	root := "/sys/fs/cgroup"
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	switch {
	case err != nil:
		root = filepath.Join(root, "memory") // v1
	case !slices.Contains(strings.Fields(string(controllers)), "memory"):
		return fmt.Errorf("%s: there is no memory controller", root)
	}
	dir, err := os.MkdirTemp(root, "atoll-testenv-")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}
