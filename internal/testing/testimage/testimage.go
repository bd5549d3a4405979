// Package testimage builds small images for tests and serves them from a registry in the test's
// process.
package testimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// An Entry is one entry of a layer, written unchanged: names may be hostile. A zero Mode means 0644,
// or 0755 for a directory. Size is set to the length of Body.
type Entry struct {
	tar.Header
	Body []byte
}

// File returns an entry for a regular file.
func File(name string, mode int64, body string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, []byte(body)}
}

// Dir returns an entry for a directory.
func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, nil}
}

// Symlink returns an entry for a symbolic link.
func Symlink(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil}
}

// Link returns an entry for a hard link.
func Link(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, nil}
}

// Tar returns a tar stream of the entries.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		hdr := e.Header
		hdr.Size = int64(len(e.Body))
		if hdr.Mode == 0 {
			hdr.Mode = 0o644
			if hdr.Typeflag == tar.TypeDir {
				hdr.Mode = 0o755
			}
		}
		if err := w.WriteHeader(&hdr); err != nil {
			t.Fatalf("tar %q: %v", hdr.Name, err)
		}
		if _, err := w.Write(e.Body); err != nil {
			t.Fatalf("tar %q: %v", hdr.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Layer returns a gzipped layer with the entries.
func Layer(t testing.TB, entries ...Entry) v1.Layer {
	t.Helper()
	return LayerOf(t, Tar(t, entries...))
}

// LayerOf returns a layer with the content of a tar stream, gzipped unless it is already compressed.
func LayerOf(t testing.TB, stream []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stream)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// New returns an image for this machine with a configuration and layers.
func New(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	return NewFor(t, v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, config, layers...)
}

// NewFor is New for another platform.
func NewFor(t testing.TB, platform v1.Platform, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant, Config: config,
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, layers...); err != nil {
		t.Fatal(err)
	}
	return img
}

// Tiny returns an image with nothing but the file /file, which holds text.
func Tiny(t testing.TB, text string) v1.Image {
	t.Helper()
	return New(t, v1.Config{}, Layer(t, File("file", 0o644, text)))
}

// Busybox returns an image with busybox, a link to it for each applet, the users root and user (1000),
// and the usual empty directories. Its command is sh.
func Busybox(t testing.TB) v1.Image {
	t.Helper()
	path := testenv.Busybox(t)
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		t.Fatalf("%s --list: %v", path, err)
	}
	entries := []Entry{
		Dir("bin", 0o755), Dir("dev", 0o755), Dir("etc", 0o755), Dir("home/user", 0o755), Dir("proc", 0o555),
		Dir("root", 0o700), Dir("sys", 0o555), Dir("tmp", 0o1777), Dir("usr/bin", 0o755), Dir("var", 0o755),
		{Header: tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, Body: program},
		File("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"),
		File("etc/group", 0o644, "root:x:0:\nuser:x:1000:\n"),
	}
	entries[3].Uid, entries[3].Gid = 1000, 1000
	for _, applet := range bytes.Fields(list) {
		if name := string(applet); name != "busybox" {
			link := Link("bin/"+name, "bin/busybox")
			link.Mode = 0o755 // Docker sets the file's mode to that of the link
			entries = append(entries, link)
		}
	}
	return New(t, v1.Config{Env: []string{"PATH=/usr/bin:/bin"}, Cmd: []string{"sh"}}, Layer(t, entries...))
}

// Debian returns an image with Debian and python3, the base of most users' images.
func Debian(t testing.TB) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromFile(testenv.Debian(t), tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
	if err != nil {
		t.Fatal(err)
	}
	return New(t, v1.Config{Cmd: []string{"bash"}}, layer)
}

// Program returns an image from scratch with one static Go program, /program, built from the source
// text of its main package. The program is the entrypoint.
func Program(t testing.TB, source string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.go": source, "go.mod": "module program\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "program", ".")
	build.Dir = dir
	build.Env = slices.Concat(os.Environ(), []string{"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off"})
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	return New(t, v1.Config{Entrypoint: []string{"/program"}},
		Layer(t, Dir("tmp", 0o1777), Entry{tar.Header{Typeflag: tar.TypeReg, Name: "program", Mode: 0o755}, program}))
}

// WithSockets returns Busybox with a program in place of python3, which the conformance suite uses to
// listen on ports and to connect to them. Debian's busybox cannot do that.
func WithSockets(t testing.TB) v1.Image {
	t.Helper()
	layers, err := Program(t, sockets).Layers()
	if err != nil {
		t.Fatal(err)
	}
	// Include the directories: a rootless dockerd 20.10 creates missing ones with modes that only
	// capabilities can bypass.
	layers = append(layers, Layer(t, Dir("usr", 0o755), Dir("usr/bin", 0o755), Symlink("usr/bin/python3", "/program"), Dir("var/tmp", 0o1777)))
	img, err := mutate.AppendLayers(Busybox(t), layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// sockets is called as "python3 -c SCRIPT HOST PORT" and reports by its exit code whether it can
// connect. With one more argument, it does something else: "pour" sends until the peer stops reading;
// "serve" listens and echoes; "web SCRIPT" listens and runs the shell script for each connection.
const sockets = `package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

func main() {
	args := os.Args[3:]
	address := net.JoinHostPort(args[0], args[1])
	switch {
	case len(args) == 2:
		if _, err := net.DialTimeout("tcp", address, 3*time.Second); err != nil {
			os.Exit(1)
		}
	case args[2] == "pour":
		pour(address)
	case args[2] == "serve":
		listen(address, func(c net.Conn) { io.Copy(c, c) })
	case args[2] == "web":
		listen(address, func(c net.Conn) {
			f, err := c.(*net.TCPConn).File()
			if err != nil {
				panic(err)
			}
			defer f.Close()
			answer := exec.Command("sh", "-c", args[3])
			answer.Stdin, answer.Stdout = f, f
			answer.Run()
		})
	}
}

func pour(address string) {
	c, err := net.DialTimeout("tcp", address, 3*time.Second)
	if err != nil {
		os.Exit(1)
	}
	for err == nil {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		_, err = c.Write(make([]byte, 65536))
	}
	os.Stdout.WriteString("stuck\n")
	time.Sleep(time.Hour)
}

func listen(address string, serve func(net.Conn)) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		serve(c)
		c.Close()
	}
}
`
