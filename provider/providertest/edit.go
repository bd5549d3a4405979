package providertest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var editPromises = []promise{
	{"an open file is the file itself, whatever becomes of its name", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		f := atoll.Files(sb)
		h.writeFile(t, sb, "log", "one\n")
		if err := atoll.LinkFile(h.newContext(t), f, "log", "same"); err != nil {
			t.Fatalf("LinkFile: %v", err)
		}
		file := h.openFile(t, f, "log", atoll.OpenOptions{Read: true, Write: true})
		h.writeAt(t, file, "two\n", 4)
		if got := h.runForOutput(t, sb, programCommand("cat", "same")); got != "one\ntwo" {
			t.Errorf("by another name, a process reads %q", got)
		}
		if err := f.Rename(h.newContext(t), "log", "moved"); err != nil {
			t.Fatalf("Rename: %v", err)
		}
		h.writeFile(t, sb, "log", "another file")
		h.writeAt(t, file, "ONE", 0)
		h.checkContent(t, sb, "moved", "ONE\ntwo\n")
		h.checkContent(t, sb, "log", "another file")
		for _, name := range []string{"moved", "same"} {
			if err := f.Remove(h.newContext(t), name, false); err != nil {
				t.Fatalf("Remove: %v", err)
			}
		}
		h.writeAt(t, file, "end", 4)
		if got := h.readAt(t, file, 20, 0); got != "ONE\nend\n" {
			t.Errorf("without a name, the file holds %q", got)
		}
		info, err := file.Stat(h.newContext(t))
		if err != nil || info.Size != 8 || info.Type != atoll.TypeFile || info.Path != "/work/log" {
			t.Errorf("Stat = %+v, %v", info, err)
		}
	}},
	{"writes of several openers and processes meet in one file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		f := atoll.Files(sb)
		first := h.openFile(t, f, "log", atoll.OpenOptions{Write: true, Append: true, Create: true})
		second := h.openFile(t, f, "log", atoll.OpenOptions{Write: true, Append: true, Create: true})
		reader := h.openFile(t, f, "log", atoll.OpenOptions{Read: true})
		h.writeAt(t, first, "a\n", 0)
		h.writeAt(t, second, "b\n", 0)
		p := h.startProcess(t, sb, scriptCommand("stay", "c", "log"))
		h.waitUntil(t, h.shortLimit(), func() error {
			_, err := reader.ReadAt(h.newContext(t), make([]byte, 1), 5)
			return err
		})
		h.killProcess(t, p)
		h.writeAt(t, first, "d\n", 0)
		if got := h.readAt(t, reader, 100, 0); got != "a\nb\nc\nd\n" {
			t.Errorf("the file holds %q", got)
		}
		big := patternBytes(3 << 20)
		h.writeAt(t, second, string(big), 0)
		if got := h.readAt(t, reader, len(big), 8); got != string(big) {
			t.Errorf("%d bytes came back: %s", len(got), describeDiff([]byte(got), big))
		}
	}},
	{"OpenFile creates, truncates and refuses as its options say", []need{needFiles}, checkOpenOptions},
	{"ChangeFile changes size, mode, times and owner, of links too", []need{needFiles}, checkChanges},
	{"LinkFile replaces nothing, and SpaceOf tells the space", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		f := atoll.Files(sb)
		h.writeFile(t, sb, "a", "a")
		h.writeFile(t, sb, "b", "b")
		wantKind(t, "LinkFile to a file", atoll.LinkFile(h.newContext(t), f, "a", "b"), atoll.ErrAlreadyExists)
		wantKind(t, "LinkFile of no file", atoll.LinkFile(h.newContext(t), f, "none", "c"), atoll.ErrNotExist)
		h.checkContent(t, sb, "b", "b")
		space, err := atoll.SpaceOf(h.newContext(t), f, "a")
		if err != nil || space.Total <= 0 || space.Free < space.Available || space.Total < space.Free {
			t.Errorf("SpaceOf = %+v, %v", space, err)
		}
		_, err = atoll.SpaceOf(h.newContext(t), f, "none")
		wantKind(t, "SpaceOf no file", err, atoll.ErrNotExist)
	}},
	{"an open file ends with its sandbox, and closes twice", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		file := h.openFile(t, atoll.Files(sb), "f", atoll.OpenOptions{Write: true, Create: true})
		for range 2 {
			if err := file.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if _, err := file.WriteAt(h.newContext(t), []byte("late"), 0); err == nil {
			t.Error("WriteAt worked after Close")
		}
		h.checkContent(t, sb, "f", "")
		file = h.openFile(t, atoll.Files(sb), "f", atoll.OpenOptions{Write: true})
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		_ = file.Close() // may report that the sandbox has gone; only has to return
		_, err := atoll.OpenFile(h.newContext(t), atoll.Files(sb), "f", atoll.OpenOptions{Read: true})
		wantKind(t, "OpenFile in a sandbox that was removed", err, atoll.ErrNotFound)
	}},
}

// openFile opens a file until the test ends.
func (h *harness) openFile(t *testing.T, f atoll.FS, name string, opts atoll.OpenOptions) atoll.File {
	t.Helper()
	file, err := atoll.OpenFile(h.newContext(t), f, name, opts)
	if err != nil {
		t.Fatalf("OpenFile %s: %v", name, err)
	}
	t.Cleanup(func() { _ = file.Close() }) // may be closed
	return file
}

func (h *harness) writeAt(t *testing.T, file atoll.File, text string, offset int64) {
	t.Helper()
	if n, err := file.WriteAt(h.newContext(t), []byte(text), offset); n != len(text) || err != nil {
		t.Fatalf("WriteAt wrote %d bytes of %d, %v", n, len(text), err)
	}
}

// readAt reads up to n bytes.
func (h *harness) readAt(t *testing.T, file atoll.File, n int, offset int64) string {
	t.Helper()
	buf := make([]byte, n)
	got, err := file.ReadAt(h.newContext(t), buf, offset)
	if err != nil && err != io.EOF || err == nil && got < n {
		t.Fatalf("ReadAt read %d bytes of %d, %v", got, n, err)
	}
	return string(buf[:got])
}

func checkOpenOptions(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	f := atoll.Files(sb)
	open := func(name string, opts atoll.OpenOptions) error {
		file, err := atoll.OpenFile(h.newContext(t), f, name, opts)
		if err == nil {
			err = file.Close()
		}
		return err
	}
	h.writeFile(t, sb, "there", "content")
	h.makeLink(t, sb, "link", "there")
	h.makeLink(t, sb, "dangling", "made")
	read, write := atoll.OpenOptions{Read: true}, atoll.OpenOptions{Write: true}
	create := atoll.OpenOptions{Write: true, Create: true}
	exclusive := atoll.OpenOptions{Write: true, Create: true, Exclusive: true, Mode: 0o751}
	for _, c := range []struct {
		name string
		opts atoll.OpenOptions
		want atoll.Kind
	}{
		{"none", read, atoll.ErrNotExist}, {"none", write, atoll.ErrNotExist}, {"none/f", create, atoll.ErrNotExist},
		{".", read, atoll.ErrInvalid}, {".", create, atoll.ErrInvalid}, {"there", exclusive, atoll.ErrAlreadyExists},
		{"link", exclusive, atoll.ErrAlreadyExists}, {"dangling", exclusive, atoll.ErrAlreadyExists}, {"dangling", read, atoll.ErrNotExist},
		{"there", atoll.OpenOptions{}, atoll.ErrInvalid}, {"there", atoll.OpenOptions{Read: true, Truncate: true}, atoll.ErrInvalid},
		{"there", atoll.OpenOptions{Read: true, Append: true}, atoll.ErrInvalid}, {"there", atoll.OpenOptions{Read: true, Exclusive: true}, atoll.ErrInvalid},
	} {
		wantKind(t, "OpenFile "+c.name, open(c.name, c.opts), c.want)
	}
	h.checkContent(t, sb, "there", "content")
	for name, opts := range map[string]atoll.OpenOptions{"plain": create, "new": exclusive, "dangling": create, "link": create} {
		if err := open(name, opts); err != nil {
			t.Errorf("OpenFile %s: %v", name, err)
		}
	}
	for name, want := range map[string]uint32{"plain": 0o644, "new": 0o751, "made": 0o644} {
		if info := h.statFile(t, sb, name); info.Mode != want || info.Size != 0 {
			t.Errorf("%s was created with %+v, want mode %o", name, info, want)
		}
	}
	h.checkContent(t, sb, "there", "content")
	if err := open("link", atoll.OpenOptions{Write: true, Truncate: true}); err != nil {
		t.Errorf("OpenFile with Truncate: %v", err)
	}
	h.checkContent(t, sb, "there", "")
	sealed := h.openFile(t, f, "sealed", atoll.OpenOptions{Write: true, Create: true, Mode: 0o400})
	h.writeAt(t, sealed, "a file that nobody may write", 0)
	_, err := sealed.ReadAt(h.newContext(t), make([]byte, 1), 0)
	wantKind(t, "ReadAt of a file that is open for writing", err, atoll.ErrDenied)
	_, err = h.openFile(t, f, "there", read).WriteAt(h.newContext(t), []byte("x"), 0)
	wantKind(t, "WriteAt to a file that is open for reading", err, atoll.ErrDenied)
	_, err = sealed.WriteAt(h.newContext(t), []byte("x"), -1)
	wantKind(t, "WriteAt before the file", err, atoll.ErrInvalid)
	if err := sealed.Sync(h.newContext(t)); err != nil {
		t.Errorf("Sync: %v", err)
	}
}

func checkChanges(t *testing.T, h *harness) {
	sb := h.plainSandbox(t)
	f := atoll.Files(sb)
	h.writeFile(t, sb, "f", "12345")
	h.makeLink(t, sb, "link", "f")
	before := h.statFile(t, sb, "f")
	change := func(seconds int64, mode uint32, size int64) atoll.FileChange {
		when := time.Unix(seconds, 0)
		return atoll.FileChange{
			Size: &size, Mode: &mode, Times: &atoll.FileTimes{Accessed: when, Modified: when},
			Owner: &atoll.FileOwner{UID: before.UID, GID: before.GID}, // the one it has
		}
	}
	check := func(what string, err error, name string, mode uint32, seconds int64) {
		t.Helper()
		if info := h.statFile(t, sb, name); err != nil || info.Mode != mode || info.Modified.Unix() != seconds || info.UID != before.UID {
			t.Errorf("after %s: %v, %+v; want mode %o, time %d", what, err, info, mode, seconds)
		}
	}
	check("ChangeFile", atoll.ChangeFile(h.newContext(t), f, "f", change(1e9, 0o600, 3)), "f", 0o600, 1e9)
	h.checkContent(t, sb, "f", "123")
	check("ChangeFile by a link", atoll.ChangeFile(h.newContext(t), f, "link", change(1.1e9, 0o640, 4)), "f", 0o640, 1.1e9)
	h.checkContent(t, sb, "f", "123\x00")
	file := h.openFile(t, f, "f", atoll.OpenOptions{Write: true})
	check("File.Change", file.Change(h.newContext(t), change(1.2e9, 0o444, 2)), "f", 0o444, 1.2e9)
	h.checkContent(t, sb, "f", "12")

	link := change(1.3e9, 0, 0)
	link.Size, link.Mode, link.NoFollow = nil, nil, true
	err := atoll.ChangeFile(h.newContext(t), f, "link", link)
	if info := h.statFile(t, sb, "link"); err != nil || info.Modified.Unix() != 1.3e9 || info.Type != atoll.TypeSymlink {
		t.Errorf("the link is %+v, %v", info, err)
	}
	check("a change of the link", nil, "f", 0o444, 1.2e9)
	mode := uint32(0o600)
	wantKind(t, "a mode for a link", atoll.ChangeFile(h.newContext(t), f, "link", atoll.FileChange{Mode: &mode, NoFollow: true}), atoll.ErrUnsupported)
	if err := f.Mkdir(h.newContext(t), "d", 0o755); err != nil {
		t.Fatalf("Mkdir: %v", err)
	}
	dir := change(1.4e9, 0o700, 0)
	dir.Size = nil
	check("ChangeFile of a directory", atoll.ChangeFile(h.newContext(t), f, "d", dir), "d", 0o700, 1.4e9)
	size := int64(0)
	wantKind(t, "a size for a directory", atoll.ChangeFile(h.newContext(t), f, "d", atoll.FileChange{Size: &size}), atoll.ErrInvalid)
	wantKind(t, "ChangeFile of no file", atoll.ChangeFile(h.newContext(t), f, "none", atoll.FileChange{Mode: &mode}), atoll.ErrNotExist)
	size = -1
	wantKind(t, "a negative size", atoll.ChangeFile(h.newContext(t), f, "f", atoll.FileChange{Size: &size}), atoll.ErrInvalid)
	err = atoll.ChangeFile(h.newContext(t), f, "f", atoll.FileChange{Owner: &atoll.FileOwner{UID: 1234, GID: 4321}})
	info := h.statFile(t, sb, "f")
	if changed := info.UID == 1234 && info.GID == 4321; changed != (err == nil) || err != nil && info.UID != before.UID {
		t.Errorf("the owner is %+v, %v", info, err)
	}
	if err != nil { // only root may, and not in every sandbox
		wantKind(t, "another owner", err, atoll.ErrDenied)
	}
}

// editCalls are the methods of an atoll.Editor, as in fsCalls.
var editCalls = []fsCall{
	{"Open", true, func(ctx context.Context, f atoll.FS, name string) error {
		return openOnce(ctx, f, name, atoll.OpenOptions{Read: true})
	}},
	{"Open to write", true, func(ctx context.Context, f atoll.FS, name string) error {
		return openOnce(ctx, f, name, atoll.OpenOptions{Write: true, Create: true, Truncate: true})
	}},
	{"Change", true, func(ctx context.Context, f atoll.FS, name string) error {
		mode, when := uint32(0o777), time.Unix(1, 0)
		return atoll.ChangeFile(ctx, f, name, atoll.FileChange{Mode: &mode, Times: &atoll.FileTimes{Accessed: when, Modified: when}})
	}},
	{"Link to", false, func(ctx context.Context, f atoll.FS, name string) error { return atoll.LinkFile(ctx, f, "own", name) }},
	{"Link of", false, func(ctx context.Context, f atoll.FS, name string) error { return atoll.LinkFile(ctx, f, name, "mine") }},
	{"Space", true, func(ctx context.Context, f atoll.FS, name string) error {
		_, err := atoll.SpaceOf(ctx, f, name)
		return err
	}},
}

func openOnce(ctx context.Context, f atoll.FS, name string, opts atoll.OpenOptions) error {
	file, err := atoll.OpenFile(ctx, f, name, opts)
	if err != nil {
		return err
	}
	return file.Close()
}
