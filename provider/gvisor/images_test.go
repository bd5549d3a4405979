//go:build linux

package gvisor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	docker "github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/internal/testing/testimage"
	"github.com/seed46cd37a8/atoll/machine/image"
	"github.com/seed46cd37a8/atoll/provider/gvisor"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisedtest"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

// TestConformanceOnImage runs the promises that concern the root file system on an OCI
// image, too. Commands and files do not depend on it.
func TestConformanceOnImage(t *testing.T) {
	if testing.Short() {
		t.Skip("much of the suite once more, on another root file system: too long for -short")
	}
	needGVisor(t)
	groups := []string{"volumes", "images", "isolation", "escape", "snapshot"}
	if testenv.RunAll() {
		groups = append(groups, "limits") // TestConformance has the same cgroups
	}
	ref := testimage.Serve(t).Push("busybox:1", testimage.WithSockets(t))
	providertest.Run(t, openProvider, append(suiteOptions(), providertest.Image(ref), providertest.Only(groups...))...)
}

// A sandbox uses an image's environment and user, but not its entrypoint and command: its
// maker decides what it runs.
func TestImageConfiguration(t *testing.T) {
	busybox := testimage.Busybox(t)
	layers, err := busybox.Layers()
	if err != nil {
		t.Fatal(err)
	}
	ref := testimage.Serve(t).Push("configured:1", testimage.New(t, v1.Config{
		Env: []string{"PATH=/bin", "COLOUR=blue", "SHAPE=round"}, User: "user", WorkingDir: "/home/user",
		Entrypoint: []string{"/bin/sh", "-c", "echo entrypoint > /tmp/ran"}, Cmd: []string{"sh"},
	}, layers...))
	l := newLab(t)
	asRoot := l.NewSandbox(atoll.Spec{Image: ref, User: "root", Workdir: "/home/user/src"})
	if got := l.Sh(asRoot, "id -u; pwd; ls -A /home/user"); got != "0\n/home/user/src\nsrc" {
		t.Errorf("as root in another workdir: %q", got)
	}
	if !l.Info().Caps.Users {
		_, err := l.Create(l.Context(), &atoll.Spec{Image: ref})
		supervisedtest.WantKind(t, "an image with a user", err, atoll.ErrUnsupported, `runs as user "user"`)
		return
	}
	sb := l.NewSandbox(atoll.Spec{Image: ref, Env: []string{"SHAPE=square"}})
	if st := l.Status(sb); !strings.HasPrefix(st.Image, ref+"@sha256:") {
		t.Errorf("image in use: %q, want %s with its digest", st.Image, ref)
	}
	got := l.Sh(sb, `echo $COLOUR $SHAPE; pwd; id -u; echo $HOME; ls /tmp; touch mine; stat -c %u mine`)
	if want := "blue square\n/work\n1000\n/home/user\n1000"; got != want {
		t.Errorf("inside:\n%s\nwant:\n%s", got, want)
	}
	_, err = l.Create(l.Context(), &atoll.Spec{Image: ref, User: "nobody-there"})
	supervisedtest.WantKind(t, "a user that the image does not have", err, atoll.ErrInvalid, "nobody-there")
}

// scratchProgram is the only file of an image from scratch.
const scratchProgram = `package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	switch os.Args[1] {
	case "echo":
		l, err := net.Listen("tcp", "127.0.0.1:7777")
		if err != nil {
			panic(err)
		}
		fmt.Println("listening")
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		io.Copy(c, c)
		c.Close()
	case "cat":
		b, err := os.ReadFile(os.Args[2])
		if err != nil {
			panic(err)
		}
		os.Stdout.Write(b)
	}
}
`

// A sandbox can do everything on an image that holds one program and nothing else, no
// shell, no passwd and no /etc.
func TestImageFromScratch(t *testing.T) {
	ref := testimage.Serve(t).Push("scratch:1", testimage.Program(t, scratchProgram))
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Image: ref})
	files := atoll.Files(sb)
	for _, name := range []string{"note", "/etc/deep/note", "/tmp/note"} {
		l.Must("write", atoll.WriteFile(l.Context(), sb, name, []byte("text of "+name), 0))
		if got := l.Run(sb, &atoll.Command{Args: []string{"/program", "cat", name}}); got != "text of "+name {
			t.Errorf("%s: %q", name, got)
		}
	}
	_, err := sb.Exec(l.Context(), &atoll.Command{Args: []string{"sh"}})
	supervisedtest.WantKind(t, "no shell", err, atoll.ErrCommandNotFound)

	var packed bytes.Buffer
	l.Must("tar", files.WriteTar(l.Context(), "/etc/deep", &packed))
	l.Must("untar", files.ReadTar(l.Context(), "/opt/copy", &packed))
	if got, err := atoll.ReadFile(l.Context(), sb, "/opt/copy/note"); string(got) != "text of /etc/deep/note" || err != nil {
		t.Errorf("after tar and untar: %q, %v", got, err)
	}

	ready := &supervisedtest.Screen{}
	_, err = sb.Exec(l.Context(), &atoll.Command{Args: []string{"/program", "echo"}, Stdout: ready})
	l.Must("exec", err)
	ready.Expect(t, "listening")
	conn, err := atoll.Dial(l.Context(), sb, 7777)
	l.Must("dial", err)
	defer conn.Close()
	_, err = io.WriteString(conn, "ping")
	l.Must("write", err)
	l.Must("half-close", conn.(interface{ CloseWrite() error }).CloseWrite())
	if got, err := io.ReadAll(conn); string(got) != "ping" || err != nil {
		t.Errorf("echo: %q, %v", got, err)
	}

	l.Must("stop", sb.Stop(l.Context(), 0))
	l.Must("start", sb.Start(l.Context()))
	if got := l.Run(sb, &atoll.Command{Args: []string{"/program", "cat", "/etc/deep/note"}}); got != "text of /etc/deep/note" {
		t.Errorf("after stop and start: %q", got)
	}
}

// An image that cannot be fetched fails Create with a kind that names the cause, and
// nothing is left.
func TestImageThatCannotBeHad(t *testing.T) {
	registry := testimage.Serve(t)
	good := registry.Push("good:1", testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.Dir("bin", 0o755))))
	corrupt := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				_, _ = w.Write([]byte("this is not what was asked for"))
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	escaping := registry.Push("escape:1", testimage.New(t, v1.Config{}, testimage.Layer(t,
		testimage.Symlink("out", "/"), testimage.File("out/../../../atoll-escaped", 0o644, "x"))))
	for _, tt := range []struct {
		name, image string
		fault       func(http.Handler) http.Handler
		want        []atoll.Kind
	}{
		{"unknown", registry.Host + "/nothing:1", nil, []atoll.Kind{atoll.ErrNotExist}},
		{"no registry", "127.0.0.1:1/x:1", nil, []atoll.Kind{atoll.ErrUnavailable}},
		{"corrupt layer", good, corrupt, []atoll.Kind{atoll.ErrInvalid, atoll.ErrUnavailable}},
		{"hostile layer", escaping, nil, []atoll.Kind{atoll.ErrInvalid}},
		{"no name", "Not A Name", nil, []atoll.Kind{atoll.ErrInvalid}},
		{"no directory", "dir:/nowhere/at/all", nil, []atoll.Kind{atoll.ErrNotExist}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			registry.Fault(tt.fault)
			defer registry.Fault(nil)
			l := newLab(t, func(o *gvisor.Options) { o.Image.Timeout = 20 * time.Second })
			_, err := l.Create(l.Context(), &atoll.Spec{Image: tt.image, Name: "web"})
			if k := atoll.KindOf(err); k != tt.want[0] && k != tt.want[len(tt.want)-1] {
				t.Errorf("%v (%s), want %s", err, k, tt.want)
			}
			// The name and the id are free again.
			l.NewSandbox(atoll.Spec{Name: "web", NoStart: true})
		})
	}
	if _, err := os.Stat("/atoll-escaped"); err == nil {
		t.Error("a layer has written outside of its root")
	}
}

// Create gives up when its ctx ends, even if the registry does not answer.
func TestImagePullIsCancelled(t *testing.T) {
	registry := testimage.Serve(t)
	ref := registry.Push("slow:1", testimage.New(t, v1.Config{}, testimage.Layer(t, testimage.Dir("bin", 0o755))))
	asked, release := make(chan struct{}, 100), make(chan struct{})
	registry.Fault(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})
	})
	defer close(release)
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := l.Create(ctx, &atoll.Spec{Image: ref}); err == nil || ctx.Err() == nil {
		t.Errorf("create: %v, ctx: %v", err, ctx.Err())
	}
	list, err := l.List(l.Context(), atoll.Filter{})
	if err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// A running sandbox holds its image: Prune does not remove it, even if the provider that
// made the sandbox is gone. A stopped one does not, and fetches it again when it starts.
func TestImageInUseIsHeld(t *testing.T) {
	registry := testimage.Serve(t)
	ref := registry.Push("busybox:1", testimage.Busybox(t))
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Image: ref})
	l.Sh(sb, "echo kept > /root/file")
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Must("close", l.Close())

	images, err := image.Open(filepath.Join(l.opts.Dir, "images"), image.Options{})
	l.Must("open images", err)
	defer images.Close()
	prune := func() int {
		t.Helper()
		pruned, err := images.Prune(t.Context(), image.PruneOptions{Unused: -time.Hour})
		l.Must("prune", err)
		return len(pruned.Images)
	}
	if n := prune(); n != 0 {
		t.Fatal("the image of a running sandbox was removed")
	}
	again := openLab(t, l.opts)
	sb, err = again.Get(t.Context(), sb.ID())
	l.Must("get", err)
	if got := again.Sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("file: %q", got)
	}
	l.Must("stop", sb.Stop(t.Context(), 0))
	if n := prune(); n != 1 {
		t.Fatalf("%d images were removed, want 1: nothing runs on it", n)
	}
	l.Must("start", sb.Start(t.Context()))
	if got := again.Sh(sb, "cat /root/file"); got != "kept" {
		t.Errorf("file after the image was fetched again: %q", got)
	}
	l.Must("stop", sb.Stop(t.Context(), 0))
	if n := prune(); n != 1 {
		t.Fatalf("%d images were removed, want 1", n)
	}
	copied := again.NewSandbox(atoll.Spec{Snapshot: snap.ID})
	if got := again.Sh(copied, "cat /root/file"); got != "kept" {
		t.Errorf("file in the restored sandbox: %q", got)
	}
	again.RemoveSandbox(copied)
	if n := prune(); n != 1 {
		t.Fatalf("%d images were removed, want 1", n)
	}
	registry.Fault(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	supervisedtest.WantKind(t, "start without the image", sb.Start(t.Context()), atoll.ErrNotExist, "was removed", ref)
	l.Must("remove snapshot", atoll.RemoveSnapshot(t.Context(), again, snap.ID))
}

// An image that came from a path is fetched from there again, if it is the same.
func TestImageFromPathIsGotAgain(t *testing.T) {
	dir := t.TempDir()
	path, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	busybox := testimage.Busybox(t)
	if err := path.AppendImage(busybox); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("busybox:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := docker.WriteToFile(filepath.Join(dir, "save.tar"), tag, busybox); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	for _, ref := range []string{"oci:" + dir + "/layout", "docker-archive:" + dir + "/save.tar"} {
		sb := l.NewSandbox(atoll.Spec{Image: ref, NoStart: true})
		if st := l.Status(sb); st.Image != ref {
			t.Errorf("image in use: %q, want %q", st.Image, ref)
		}
		remove := func() {
			t.Helper()
			all, err := atoll.Images(l.Context(), l)
			l.Must("images", err)
			for _, im := range all {
				l.Must("remove image", atoll.RemoveImage(l.Context(), l, im.Digest, true))
			}
		}
		remove()
		l.Must("start", sb.Start(l.Context()))
		if got := l.Sh(sb, "echo works"); got != "works" {
			t.Errorf("%s again: %q", ref, got)
		}
		l.Must("stop", sb.Stop(l.Context(), 0))
		remove()
		if err := path.ReplaceImage(testimage.New(t, v1.Config{}), func(v1.Descriptor) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if err := docker.WriteToFile(filepath.Join(dir, "save.tar"), tag, testimage.New(t, v1.Config{})); err != nil {
			t.Fatal(err)
		}
		supervisedtest.WantKind(t, "start on another image", sb.Start(l.Context()), atoll.ErrNotExist, "was removed", "another digest", ref)
		l.Must("write the first again", docker.WriteToFile(filepath.Join(dir, "save.tar"), tag, busybox))
	}
}

// A plain directory of the machine serves as an image, and is not written to.
func TestImageIsDirectory(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile(testenv.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	layer := testimage.Tar(t, testimage.Dir("bin", 0o755),
		testimage.Entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, Body: program},
		testimage.Symlink("bin/sh", "busybox"), testimage.Symlink("bin/cat", "busybox"), testimage.File("motd", 0o644, "hello\n"))
	unpackTar(t, dir, layer)
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Image: "dir:" + dir})
	if got := l.Sh(sb, "cat /motd; echo changed > /motd; cat /motd; echo > /new"); got != "hello\nchanged" {
		t.Errorf("inside: %q", got)
	}
	if got := strings.Join(supervisedtest.ListDir(t, dir), " "); got != "bin motd" {
		t.Errorf("the directory holds %s", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "motd")); string(got) != "hello\n" || err != nil {
		t.Errorf("motd on the host: %q, %v", got, err)
	}
}

// unpackTar writes the directories, files and links of a tar stream below dir.
func unpackTar(t *testing.T, dir string, stream []byte) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(stream)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, data, os.FileMode(h.Mode))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk is reported as such, and takes the image when there is space again.
func TestImageOnFullDisk(t *testing.T) {
	testenv.Need(t, testenv.Root)
	needGVisor(t)
	ref := testimage.Serve(t).Push("busybox:1", testimage.Busybox(t))
	opts := freshOptions(t)
	images := filepath.Join(opts.Dir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("atoll-test", images, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(images, 0); err != nil {
			t.Error(err)
		}
	})
	l := openLab(t, opts)
	_, err := l.Create(l.Context(), &atoll.Spec{Image: ref, Name: "web"})
	supervisedtest.WantKind(t, "create on a full disk", err, atoll.ErrExhausted, "no space left")
	if list, err := l.List(l.Context(), atoll.Filter{}); len(list) > 0 || err != nil {
		t.Errorf("left: %v, %v", list, err)
	}
	l.Must("make space", unix.Mount("", images, "", unix.MS_REMOUNT, "size=100m"))
	sb := l.NewSandbox(atoll.Spec{Image: ref, Name: "web"})
	if got := l.Sh(sb, "echo works"); got != "works" {
		t.Errorf("with space: %q", got)
	}
}

// Errors name the users of an image, including a snapshot whose sandbox is gone. When the
// last of them has gone, the image can be removed, with everything that was fetched for it.
func TestImageUsers(t *testing.T) {
	ref := testimage.Serve(t).Push("busybox:1", testimage.Busybox(t))
	l := newLab(t)
	sb := l.NewSandbox(atoll.Spec{Name: "web", Image: ref})
	snap, err := atoll.TakeSnapshot(l.Context(), sb)
	l.Must("snapshot", err)
	l.Must("stop", sb.Stop(l.Context(), 0))
	supervisedtest.WantKind(t, "remove with a sandbox", atoll.RemoveImage(l.Context(), l, ref, false), atoll.ErrConflict, "sandbox web", "force")
	l.Must("remove", sb.Remove(l.Context(), atoll.RemoveVolumes()))
	supervisedtest.WantKind(t, "remove with a snapshot", atoll.RemoveImage(l.Context(), l, ref, false), atoll.ErrConflict, "snapshot "+snap.ID)
	if all, err := atoll.Images(l.Context(), l); err != nil || len(all) != 1 || !all[0].InUse {
		t.Errorf("images: %+v, %v, want one in use", all, err)
	}
	l.Must("remove snapshot", atoll.RemoveSnapshot(l.Context(), l, snap.ID))
	pruned, err := atoll.PruneImages(l.Context(), l, atoll.PruneOptions{All: true})
	if err != nil || len(pruned.Images) != 1 || pruned.Size == 0 {
		t.Errorf("prune: %+v, %v, want the image", pruned, err)
	}
	for _, dir := range []string{"roots", "blobs", "refs"} {
		left, err := os.ReadDir(filepath.Join(l.opts.Dir, "images", dir))
		if err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}
