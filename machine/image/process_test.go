//go:build linux

package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"
)

// A childTask is the work of this test binary when it is started with childEnv: it
// gets images in turn and writes a childResult for each.
type childTask struct {
	Dir    string
	Refs   []string
	Tmpfs  string // size of a tmpfs to put on Dir, in a mount namespace of its own
	Hold   bool   // hold the last image until stdin ends
	Remove bool   // when stdin ends, remove the images and all that was fetched, and tell of it
}

type childResult struct {
	Image *Image
	Kind  atoll.Kind
	Error string
	Left  []string // in the store's directory for what is half-done
	Free  int64
}

const childEnv = "ATOLL_IMAGE_TEST"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var t childTask
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			panic(err)
		}
		t.runTask()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (t childTask) runTask() {
	if t.Tmpfs != "" {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			panic(err)
		}
		if err := syscall.Mount("tmpfs", t.Dir, "tmpfs", 0, "size="+t.Tmpfs); err != nil {
			panic(err)
		}
	}
	s, err := Open(t.Dir, Options{})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	s.backoff = time.Millisecond
	for _, ref := range t.Refs {
		img, err := s.Get(context.Background(), ref, nil)
		o := childResult{Image: img, Kind: atoll.KindOf(err), Free: freeBytes(t.Dir)}
		if err != nil {
			o.Error = err.Error()
		}
		left, _ := filepath.Glob(s.storePath(tempsDir, "*", "*"))
		o.Left = left
		if t.Hold {
			if _, err := img.Hold(); err != nil {
				panic(err)
			}
		}
		b, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(b))
	}
	if t.Hold || t.Remove {
		io.Copy(io.Discard, os.Stdin)
	}
	if t.Remove {
		var o childResult
		if _, err := s.Prune(context.Background(), PruneOptions{Unused: -time.Hour}); err != nil {
			o.Error = err.Error()
		}
		o.Left, _ = filepath.Glob(s.storePath("*", "*"))
		b, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(b))
	}
}

// startChild starts this binary with the task.
func (k childTask) startChild(t *testing.T, binary string, attr *syscall.SysProcAttr) (*exec.Cmd, *bufio.Reader, io.Closer) {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "HOME=/", "DOCKER_CONFIG="+k.Dir)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		if attr != nil && attr.Cloneflags&syscall.CLONE_NEWUSER != 0 && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC)) {
			t.Skipf("this machine denies user namespaces: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, bufio.NewReader(stdout), stdin
}

func readResult(t *testing.T, r *bufio.Reader) childResult {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	var o childResult
	if err := json.Unmarshal(line, &o); err != nil {
		t.Fatalf("child: %q: %v", line, err)
	}
	return o
}

func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// manyFilesLayer is a layer with n files.
func manyFilesLayer(t testing.TB, n int) (v1.Layer, map[string]string) {
	list, want := entries{}, map[string]string{}
	for i := range n {
		dir := fmt.Sprintf("d%d", i%20)
		name, body := fmt.Sprintf("%s/f%d", dir, i), fmt.Sprint(i)
		list = append(list, File(name, 0o644, body))
		want[dir], want[name] = "dir", body
	}
	return Layer(t, list...), want
}

// TestKilledHalfway kills -9 a process that has unpacked one layer and waits
// for the next.
func TestKilledHalfway(t *testing.T) {
	slow := Layer(t, File("slow", 0, "x"))
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, Layer(t, File("quick", 0, "y")), slow))
	r.Fault(onPath("blobs/"+digestOf(t, slow), func(_ int, w http.ResponseWriter, req *http.Request) bool {
		w.Header().Set("Content-Length", "1000")
		w.Write([]byte("half of it"))
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		return true
	}))
	dir := t.TempDir()
	cmd, _, _ := childTask{Dir: dir, Refs: []string{ref}}.startChild(t, testBinary(t), nil)
	for deadline := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(5 * time.Millisecond) {
		unpacked, _ := filepath.Glob(filepath.Join(dir, tempsDir, "*", "*", rootName, "quick"))
		halves, _ := filepath.Glob(filepath.Join(dir, tempsDir, "*", "*"))
		if len(unpacked) > 0 && len(halves) > 1 { // the root, and half a blob
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the child did not come that far")
		}
	}
	if other, err := Open(dir, Options{}); err != nil {
		t.Fatal(err)
	} else if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if halves, _ := filepath.Glob(filepath.Join(dir, tempsDir, "*", "*")); len(halves) == 0 {
		t.Fatal("opening the store took away what a living process is at work on")
	}
	cmd.Process.Kill()
	cmd.Wait()
	r.Fault(nil)

	s := openStoreIn(t, dir, Options{})
	nothingHalfDone(t, dir)
	img := mustGet(t, s, ref)
	if got, want := listTree(t, img.Root), map[string]string{"quick": "y", "slow": "x"}; !maps.Equal(got, want) {
		t.Errorf("root holds %v, want %v", got, want)
	}
}

// TestKilledAnytime kills -9 a process that gets an image, at any moment.
func TestKilledAnytime(t *testing.T) {
	layer, want := manyFilesLayer(t, 300)
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer, layer))
	binary := testBinary(t)
	for range 10 {
		dir := t.TempDir()
		cmd, _, _ := childTask{Dir: dir, Refs: []string{ref}}.startChild(t, binary, nil)
		wait := time.Duration(5+rand.IntN(80)) * time.Millisecond
		select {
		case <-time.After(wait): // a random moment
		case <-t.Context().Done():
		}
		cmd.Process.Kill()
		cmd.Wait()
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := listTree(t, mustGet(t, s, ref).Root); !maps.Equal(got, want) {
			t.Errorf("killed after %v: root holds %d files, want %d", wait, len(got), len(want))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		nothingHalfDone(t, dir)
	}
}

// TestManyProcesses has processes that get one image at once.
func TestManyProcesses(t *testing.T) {
	layer, want := manyFilesLayer(t, 200)
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, layer))
	dir := t.TempDir()
	var outs []*bufio.Reader
	for range 4 {
		_, out, _ := childTask{Dir: dir, Refs: []string{ref}}.startChild(t, testBinary(t), nil)
		outs = append(outs, out)
	}
	for _, out := range outs {
		if o := readResult(t, out); o.Error != "" {
			t.Error(o.Error)
		}
	}
	blobs := 0
	for _, g := range r.Gets() {
		if strings.HasPrefix(g, "blobs/") {
			blobs++
		}
	}
	if blobs != 2 {
		t.Errorf("%d blobs were fetched, want the configuration and the layer", blobs)
	}
	if got := listTree(t, mustGet(t, openStoreIn(t, dir, Options{}), ref).Root); !maps.Equal(got, want) {
		t.Errorf("root holds %d files, want %d", len(got), len(want))
	}
}

// TestHeldByProcess prunes what another process holds, before and after it was
// killed.
func TestHeldByProcess(t *testing.T) {
	r := Serve(t)
	ref := r.Push("app:1", simpleImage(t, "x"))
	dir := t.TempDir()
	cmd, out, _ := childTask{Dir: dir, Refs: []string{ref}, Hold: true}.startChild(t, testBinary(t), nil)
	img := readResult(t, out).Image
	s := openStoreIn(t, dir, Options{})
	if p, err := s.Prune(t.Context(), PruneOptions{Unused: -time.Hour}); err != nil || len(p.Images) > 0 {
		t.Errorf("Prune = %+v, %v, want nothing: it is held", p, err)
	}
	wantKind(t, "Remove", s.Remove(t.Context(), img.Digest, nil), atoll.ErrConflict)

	// A child that knows nothing of images inherits the hold.
	hold, err := img.Hold()
	if err != nil {
		t.Fatal(err)
	}
	heir := exec.Command("cat")
	heir.ExtraFiles = []*os.File{hold}
	stdin, err := heir.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	hold.Close()
	cmd.Process.Kill()
	cmd.Wait()
	wantKind(t, "Remove while the heir lives", s.Remove(t.Context(), img.Digest, nil), atoll.ErrConflict)
	stdin.Close()
	heir.Wait()
	if p, err := s.Prune(t.Context(), PruneOptions{Unused: -time.Hour}); err != nil || len(p.Images) != 1 {
		t.Errorf("Prune = %+v, %v, want the image", p, err)
	}
}

// TestNoSpace has a cache of one megabyte, and images that are too large for it
// packed, unpacked, or not at all.
func TestNoSpace(t *testing.T) {
	noise := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	r := Serve(t)
	refs := []string{
		r.Push("packed:1", simpleImage(t, string(noise))),
		r.Push("unpacked:1", simpleImage(t, strings.Repeat("x", 3<<20))),
		r.Push("small:1", simpleImage(t, "x")),
	}
	dir := t.TempDir()
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	_, out, _ := childTask{Dir: dir, Refs: refs, Tmpfs: "1m"}.startChild(t, testBinary(t), attr)
	for _, ref := range refs[:2] {
		o := readResult(t, out)
		if o.Kind != atoll.ErrExhausted || !strings.Contains(o.Error, dir) || !strings.Contains(o.Error, " bytes there") {
			t.Errorf("%s: got %q (kind %q), want %q with directory and bytes", ref, o.Error, o.Kind, atoll.ErrExhausted)
		}
		if len(o.Left) > 0 {
			t.Errorf("%s: left %v", ref, o.Left)
		}
		if o.Free < 900<<10 {
			t.Errorf("%s: %d bytes are free, want nearly all", ref, o.Free)
		}
	}
	if o := readResult(t, out); o.Error != "" {
		t.Errorf("%s: %s", refs[2], o.Error)
	}
}

// TestOrdinaryUser unpacks as a user who is not root, and removes it again,
// although the image has directories that nobody may write to.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user; all other tests cover an ordinary user when run as one")
	}
	own := File("bin/su", 0o4755, "su")
	own.Uid, own.Gid = 5, 6
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{},
		Layer(t, Dir("ro", 0o555), File("ro/f", 0o444, "x"), Dir("ro/deep", 0o111), File("ro/deep/g", 0, "y"), Dir("none", 0o100), own),
		Layer(t, File("ro/more", 0o400, "z"), File("none/h", 0o600, ""))))
	dir, err := os.MkdirTemp("", "atoll-image")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const uid = 12345
	for _, err := range []error{os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "store"), 0o700), os.Chown(filepath.Join(dir, "store"), uid, uid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "image.test")
	program, err := os.ReadFile(testBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, program, 0o755); err != nil {
		t.Fatal(err)
	}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	store := filepath.Join(dir, "store")
	_, out, stdin := childTask{Dir: store, Refs: []string{ref}, Remove: true}.startChild(t, binary, attr)
	o := readResult(t, out)
	if o.Error != "" {
		t.Fatal(o.Error)
	}
	for name, mode := range map[string]fs.FileMode{
		"ro": 0o555 | fs.ModeDir, "ro/f": 0o444, "ro/more": 0o400, "ro/deep": 0o111 | fs.ModeDir, "none": 0o100 | fs.ModeDir, "bin/su": 0o755 | fs.ModeSetuid,
	} {
		fi, err := os.Lstat(filepath.Join(store, rootsDir, strings.Replace(o.Image.Digest, ":", "-", 1), rootName, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st := fi.Sys().(*syscall.Stat_t); fi.Mode() != mode || st.Uid != uid || st.Gid != uid {
			t.Errorf("%s: %v %d:%d, want %v and the caller's", name, fi.Mode(), st.Uid, st.Gid, mode)
		}
	}
	stdin.Close()
	if o := readResult(t, out); o.Error != "" || len(o.Left) != 1 { // its own place for what is half-done
		t.Errorf("Prune: %s, left %v", o.Error, o.Left)
	}
}

// TestUserNamespace unpacks as the root of a user namespace that knows no other
// user: owners cannot be kept there.
func TestUserNamespace(t *testing.T) {
	own := File("f", 0o600, "x")
	own.Uid, own.Gid = 1000, 1000
	r := Serve(t)
	ref := r.Push("app:1", New(t, v1.Config{}, Layer(t, own)))
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	_, out, _ := childTask{Dir: t.TempDir(), Refs: []string{ref}}.startChild(t, testBinary(t), attr)
	if o := readResult(t, out); o.Error != "" {
		t.Error(o.Error)
	}
}
