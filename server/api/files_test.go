package api

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/dirfs"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// withFiles gives the rig's sandbox a directory of the host.
func withFiles(t *testing.T, opts Options) (*rig, atoll.FS, string) {
	t.Helper()
	dir := t.TempDir()
	files, err := dirfs.New("/work", dir, dirfs.Options{UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	r := newRig(t, opts)
	r.box.fs = files
	return r, atoll.Files(r.sb), dir
}

func TestFileNamesOutsideUTF8(t *testing.T) {
	_, files, dir := withFiles(t, Options{})
	names := []string{"a b", "\"'", "new\nline", "-x", "%2e", "a|b", "ü", "caf\xe9", "?q=1&x", "#", "+"}
	for _, name := range names {
		fi, err := files.Write(t.Context(), "/work/"+name, strings.NewReader(name), atoll.WriteOptions{})
		if err != nil || fi.Name != name || fi.Path != "/work/"+name {
			t.Errorf("Write %q: %q %q, %v", name, fi.Name, fi.Path, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != name {
			t.Errorf("%q holds %q, %v", name, b, err)
		}
		r, fi, err := files.Read(t.Context(), "/work/"+name, 1)
		if err != nil {
			t.Errorf("Read %q: %v", name, err)
			continue
		}
		b, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(b) != name[1:] || fi.Path != "/work/"+name {
			t.Errorf("Read %q: %q of %q, %v", name, b, fi.Path, err)
		}
	}
	all, err := files.List(t.Context(), "/work", false)
	if err != nil || len(all) != len(names) {
		t.Fatalf("List: %d, %v", len(all), err)
	}
	for _, fi := range all {
		if _, err := files.Stat(t.Context(), fi.Path); err != nil {
			t.Errorf("Stat %q as listed: %v", fi.Path, err)
		}
	}
}

func TestReadOutlivesItsContext(t *testing.T) {
	_, files, _ := withFiles(t, Options{})
	data := bytes.Repeat([]byte("x"), 4<<20)
	if _, err := files.Write(t.Context(), "/work/f", bytes.NewReader(data), atoll.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, _, err := files.Read(ctx, "/work/f", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if _, _, err := files.Read(ctx, "/work/f", 0); err != context.Canceled {
		t.Errorf("Read with an ended context: %v", err)
	}
}

func TestReadFileOfUnknownSize(t *testing.T) {
	r, _, _ := withFiles(t, Options{})
	r.box.fs = dirfs.System(dirfs.Options{})
	got, err := atoll.ReadFile(t.Context(), r.sb, "/proc/self/status")
	if err != nil || !strings.Contains(string(got), "VmRSS") {
		t.Errorf("read %q, %v", got, err)
	}
	if got, err := atoll.ReadFile(t.Context(), r.sb, "/dev/null"); err == nil {
		t.Errorf("read %q of a device", got)
	}
}

func TestUploadTooLarge(t *testing.T) {
	_, files, dir := withFiles(t, Options{MaxUpload: 1 << 20})
	for name, r := range map[string]io.Reader{
		"told":   bytes.NewReader(make([]byte, 8<<20)),
		"untold": io.LimitReader(zeros{}, 8<<20),
	} {
		_, err := files.Write(t.Context(), "/work/"+name, r, atoll.WriteOptions{})
		if !errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestUploadBreaksOff(t *testing.T) {
	_, files, dir := withFiles(t, Options{})
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for name, c := range map[string]struct {
		ctx  context.Context
		r    io.Reader
		want error
	}{
		"its reader": {t.Context(), io.MultiReader(io.LimitReader(zeros{}, 1<<20), readerFunc(func([]byte) (int, error) { return 0, fs.ErrClosed })), fs.ErrClosed},
		"its context": {ctx, readerFunc(func(p []byte) (int, error) {
			if n++; n == 20 {
				cancel()
			}
			return len(p), nil
		}), context.Canceled},
	} {
		if _, err := files.Write(c.ctx, "/work/f", c.r, atoll.WriteOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%s: Write = %v, want %v", name, err, c.want)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: %v is left", name, left)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != "old" {
			t.Errorf("%s: the file holds %d other bytes", name, len(b))
		}
	}
}

// A brokenFS fails in the middle of a transfer.
type brokenFS struct{ atoll.FS }

func (brokenFS) WriteTar(_ context.Context, _ string, w io.Writer) error {
	w.Write(make([]byte, 100_000))
	return atoll.Errorf("read", "x", atoll.ErrExhausted, "no more é")
}

type brokenFile struct{ io.Reader }

func (brokenFile) Close() error { return nil }

func (brokenFS) Read(context.Context, string, int64) (io.ReadCloser, atoll.FileInfo, error) {
	broken := readerFunc(func([]byte) (int, error) { return 0, errors.New("bad sector") })
	return brokenFile{io.MultiReader(io.LimitReader(zeros{}, 100_000), broken)}, atoll.FileInfo{Type: atoll.TypeFile, Size: 200_000}, nil
}

func TestTruncatedDownloadsFail(t *testing.T) {
	r := newRig(t, Options{})
	r.box.fs = brokenFS{}
	files := atoll.Files(r.sb)
	err := files.WriteTar(t.Context(), "/", io.Discard)
	if !errors.Is(err, atoll.ErrExhausted) || err.Error() != "read x: no more é" {
		t.Errorf("WriteTar: %v", err)
	}
	if err := files.WriteTar(t.Context(), "/", failingWriter{}); err == nil || err.Error() != "disk full" {
		t.Errorf("WriteTar to a writer that fails: %v", err)
	}
	f, fi, err := files.Read(t.Context(), "/f", 0)
	if err != nil || fi.Size != 200_000 {
		t.Fatalf("Read: %+v, %v", fi, err)
	}
	defer f.Close()
	if n, err := io.Copy(io.Discard, f); !errors.Is(err, atoll.ErrUnavailable) || n > 100_000 {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestTarRoundTrip(t *testing.T) {
	_, files, dir := withFiles(t, Options{})
	if err := files.Mkdir(t.Context(), "/work/d/e", 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(t.Context(), "/work/d/e/f", strings.NewReader("x"), atoll.WriteOptions{Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := files.WriteTar(t.Context(), "/work/d", &packed); err != nil {
		t.Fatal(err)
	}
	if err := files.ReadTar(t.Context(), "/work/copy", &packed); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "copy/e/f")); string(b) != "x" {
		t.Errorf("got %q, %v", b, err)
	}
	var evil bytes.Buffer
	tw := tar.NewWriter(&evil)
	tw.WriteHeader(&tar.Header{Name: "../out", Size: 1 << 20, Mode: 0o600})
	tw.Write(make([]byte, 1<<20))
	tw.Close()
	if err := files.ReadTar(t.Context(), "/work/copy", io.MultiReader(&evil, zeros{})); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("ReadTar that leads out: %v", err)
	}
	if err := files.Rename(t.Context(), "/work/copy", "/work/moved"); err != nil {
		t.Error(err)
	}
	if err := files.Remove(t.Context(), "/work/moved", false); err == nil {
		t.Error("a directory that is not empty was removed")
	}
	if err := files.Remove(t.Context(), "/work/moved", true); err != nil {
		t.Error(err)
	}
}

func TestFileWatch(t *testing.T) {
	_, files, dir := withFiles(t, Options{})
	finishesSoon(t, "seeing a file appear", func() {
		for ev, err := range files.Watch(t.Context(), "/work", false) {
			if err != nil {
				t.Errorf("Watch: %v", err)
				return
			}
			if ev.Type == atoll.FileSynced {
				if err := os.WriteFile(filepath.Join(dir, "caf\xe9"), nil, 0o600); err != nil {
					t.Error(err)
				}
				continue
			}
			if ev.Path != "/work/caf\xe9" {
				t.Errorf("event %+v", ev)
			}
			return
		}
	})
}

// A request always has the directories that confine it, in order, even if one is the work
// directory.
func TestBelow(t *testing.T) {
	r, files, dir := withFiles(t, Options{})
	for name, target := range map[string]string{"a/out": "../f", "a/b/out": "../f"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o755), os.Symlink(target, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"f", "a/f", "a/b/f"} {
		if _, err := files.Write(t.Context(), name, strings.NewReader(name), atoll.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		below []string
		name  string
		want  string
	}{
		{[]string{""}, "f", "f"}, {[]string{"a"}, "f", "a/f"}, {[]string{"/work/a"}, "/work/a/f", "a/f"}, {[]string{"", "a", "b"}, "f", "a/b/f"},
		{[]string{"a"}, "b/out", "a/f"},
		{[]string{""}, "../f", ""}, {[]string{"a"}, "out", ""}, {[]string{"a", "b"}, "out", ""}, {[]string{"a", "/work"}, "f", ""}, {[]string{"a", ".."}, "f", ""},
	} {
		sub := files
		for _, dir := range c.below {
			sub = atoll.SubFiles(sub, dir)
		}
		file, _, err := sub.Read(t.Context(), c.name, 0)
		got := ""
		if err == nil {
			b, rerr := io.ReadAll(file)
			got, err = string(b), errors.Join(rerr, file.Close())
		}
		if got != c.want || (c.want == "") != (atoll.KindOf(err) == atoll.ErrDenied) {
			t.Errorf("%s below %q: %q, %v, want %q", c.name, c.below, got, err, c.want)
		}
	}
	deep := files
	for range maxBelow + 1 {
		if _, err := deep.Stat(t.Context(), "f"); err != nil {
			t.Errorf("Stat: %v", err)
		}
		deep = atoll.SubFiles(deep, ".")
	}
	if _, err := deep.Stat(t.Context(), "f"); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("below too many: %v, want %s", err, atoll.ErrInvalid)
	}
	r.box.fs = struct{ atoll.FS }{r.box.fs}
	if _, err := files.Stat(t.Context(), "f"); err != nil {
		t.Errorf("Stat: %v", err)
	}
	if _, err := atoll.SubFiles(files, "a").Stat(t.Context(), "f"); atoll.KindOf(err) != atoll.ErrUnsupported {
		t.Errorf("below a directory of files that cannot be confined: %v, want %s", err, atoll.ErrUnsupported)
	}
}

// All requests about files accept the parameter below.
func TestFileRoutesTakeBelow(t *testing.T) {
	for _, r := range fileRoutes() {
		if !slices.ContainsFunc(r.Params, func(p Param) bool { return p.Name == "below" && p.Many && !p.Required }) {
			t.Errorf("%s does not take below", r.Name)
		}
	}
}

// Files that are open for changes obey the limit of uploads, too.
func TestOpenFileIsBounded(t *testing.T) {
	_, files, _ := withFiles(t, Options{MaxUpload: 10})
	for _, opts := range []atoll.OpenOptions{{Write: true, Create: true}, {Write: true, Append: true}} {
		f, err := atoll.OpenFile(t.Context(), files, "/work/f", opts)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := f.WriteAt(t.Context(), []byte("12345"), 0); n != 5 || err != nil {
			t.Errorf("%+v: a small write: %d, %v", opts, n, err)
		}
		if n, err := f.WriteAt(t.Context(), []byte("123456"), 6); n != 0 || atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%+v: a write beyond the limit: %d, %v", opts, n, err)
		}
		size := int64(11)
		if err := f.Change(t.Context(), atoll.FileChange{Size: &size}); atoll.KindOf(err) != atoll.ErrInvalid {
			t.Errorf("%+v: a size beyond the limit: %v", opts, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if info, err := files.Stat(t.Context(), "/work/f"); err != nil || info.Size != 10 {
		t.Errorf("the file has %d bytes, %v", info.Size, err)
	}
}

// The server tells a client that sends nonsense to an open file why it ends the connection. It keeps
// what the client has written.
func TestOpenFileClients(t *testing.T) {
	r, files, dir := withFiles(t, Options{})
	ws, _, err := websocket.Dial(t.Context(), r.server.URL+"/v1/sandboxes/"+r.sb.ID()+"/files/open?path=/work/f&write=true&create=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	var reply wire.FileReply
	exchange := func(message string) error {
		if message != "" {
			if err := ws.Write(t.Context(), websocket.MessageBinary, []byte(message)); err != nil {
				return err
			}
		}
		_, b, err := ws.Read(t.Context())
		if err == nil {
			reply = wire.FileReply{}
			_, err = wire.DecodeFileMessage(b, &reply)
		}
		return err
	}
	if err := exchange(""); err != nil || reply.Error != nil {
		t.Fatalf("the first message: %+v, %v", reply, err)
	}
	for _, c := range [][2]string{{`{"op":"dance"}`, "unknown"}, {`{"op":"change"}`, "missing"}, {`{"op":"read","length":-1}`, "length"}} {
		if err := exchange(c[0] + "\n"); err != nil || reply.Error == nil || !strings.Contains(reply.Error.Message, c[1]) {
			t.Errorf("%s: %+v, %v; want an error with %q", c[0], reply.Error, err, c[1])
		}
	}
	if err := exchange(`{"op":"write","offset":2}` + "\nab"); err != nil || reply.Error != nil || reply.Count != 2 {
		t.Errorf("write: %+v, %v", reply, err)
	}
	if err := exchange("nonsense"); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("nonsense: %v, want the status %d", err, websocket.StatusPolicyViolation)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); string(b) != "\x00\x00ab" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if _, err := atoll.OpenFile(t.Context(), files, "/work/none", atoll.OpenOptions{Read: true}); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("a missing file: %v", err)
	}
}
