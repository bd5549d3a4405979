package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var filePromises = []promise{
	{"Read and processes see what Write has written", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if err := atoll.WriteFile(h.newContext(t), sb, "note.txt", []byte("hello\n"), 0); err != nil {
			t.Fatalf("WriteFile: %v", err)
		}
		h.checkContent(t, sb, "note.txt", "hello\n")
		h.checkContent(t, sb, "/work/note.txt", "hello\n")
		h.checkContent(t, sb, "./x/../note.txt", "hello\n")
		if got := h.runForOutput(t, sb, programCommand("cat", "note.txt")); got != "hello" {
			t.Errorf("cat printed %q", got)
		}
		if h.runForCode(t, sb, scriptCommand("store", "out.txt", "from inside")) != 0 {
			t.Error("the process could not write")
		}
		h.checkContent(t, sb, "out.txt", "from inside\n")
	}},
	{"relative names are below the work directory of the spec", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Workdir: "/work/place"})
		info, err := atoll.Files(sb).Write(h.newContext(t), "f", strings.NewReader("x"), atoll.WriteOptions{})
		if err != nil || info.Path != "/work/place/f" {
			t.Errorf("Write = %+v, %v; want path /work/place/f", info, err)
		}
	}},
	{"64 MiB of arbitrary bytes survive the round trip", []need{needFiles}, func(t *testing.T, h *harness) {
		sb, data := h.plainSandbox(t), patternBytes(64<<20)
		info, err := atoll.Files(sb).Write(h.newContext(t), "big", bytes.NewReader(data), atoll.WriteOptions{})
		if err != nil || info.Size != int64(len(data)) {
			t.Fatalf("Write = %+v, %v", info, err)
		}
		got, err := atoll.ReadFile(h.newContext(t), sb, "big")
		if err != nil {
			t.Fatalf("ReadFile: %v", err)
		}
		if d := describeDiff(got, data); d != "" {
			t.Errorf("ReadFile gave %s", d)
		}
	}},
	{"Read starts at the offset and describes the file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "digits", "0123456789")
		for offset, want := range map[int64]string{0: "0123456789", 4: "456789", 10: "", 99: ""} {
			r, info, err := atoll.Files(sb).Read(h.newContext(t), "digits", offset)
			if err != nil {
				t.Errorf("Read from %d: %v", offset, err)
				continue
			}
			got, err := io.ReadAll(r)
			r.Close()
			if string(got) != want || err != nil || info.Size != 10 || info.Path != "/work/digits" {
				t.Errorf("Read from %d = %q, %+v, %v; want %q", offset, got, info, err, want)
			}
		}
		_, _, err := atoll.Files(sb).Read(h.newContext(t), "digits", -1)
		wantKind(t, "Read from -1", err, atoll.ErrInvalid)
	}},
	{"unusual names come back unchanged", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		names := []string{" spaced out ", "-rf", "quo'te\"s", "new\nline", "return\r", "delete\x7f", "escape\x1b", "latin\xe9", "pipe|star*?", "ümläut", "日本語", "%2F%00", "a+b&c=d#e", "...", "dot.", "back\\slash", strings.Repeat("n", 255)}
		for _, name := range names {
			h.writeFile(t, sb, "odd/"+name, name)
			h.checkContent(t, sb, "odd/"+name, name)
		}
		list, err := atoll.Files(sb).List(h.newContext(t), "odd", false)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		var got []string
		for _, f := range list {
			got = append(got, f.Name)
		}
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("List = %q, want %q", got, names)
		}
	}},
	{"Stat returns type, size, mode, owner, time and target", []need{needFiles}, func(t *testing.T, h *harness) {
		sb, begin := h.plainSandbox(t), time.Now()
		info, err := atoll.Files(sb).Write(h.newContext(t), "dir/f", strings.NewReader("12345"), atoll.WriteOptions{Mode: 0o640})
		if err != nil {
			t.Fatalf("Write: %v", err)
		}
		st := h.statFile(t, sb, "dir/f")
		if !sameInfo(st, info) {
			t.Errorf("Stat = %+v, Write said %+v", st, info)
		}
		if st.Name != "f" || st.Path != "/work/dir/f" || st.Type != atoll.TypeFile || st.Size != 5 || st.Mode != 0o640 {
			t.Errorf("Stat = %+v", st)
		}
		if st.Modified.Before(begin.Add(-time.Minute)) || st.Modified.After(time.Now().Add(time.Minute)) {
			t.Errorf("modified %v, now %v", st.Modified, time.Now())
		}
		if d := h.statFile(t, sb, "dir"); d.Type != atoll.TypeDirectory || d.Name != "dir" || d.Path != "/work/dir" {
			t.Errorf("Stat of the directory = %+v", d)
		}
		h.makeLink(t, sb, "link", "dir/f")
		if l := h.statFile(t, sb, "link"); l.Type != atoll.TypeSymlink || l.Target != "dir/f" {
			t.Errorf("Stat of the link = %+v", l)
		}
		h.makeLink(t, sb, "dangling", "nowhere")
		if l := h.statFile(t, sb, "dangling"); l.Type != atoll.TypeSymlink || l.Target != "nowhere" {
			t.Errorf("Stat of the dangling link = %+v", l)
		}
		h.checkContent(t, sb, "link", "12345")
	}},
	{"Write keeps the mode of the file it replaces, unless one is given", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, c := range []struct{ mode, want uint32 }{{0, 0o644}, {0o755, 0o755}, {0, 0o755}, {0o600, 0o600}} {
			if _, err := atoll.Files(sb).Write(h.newContext(t), "f", strings.NewReader("x"), atoll.WriteOptions{Mode: c.mode}); err != nil {
				t.Fatalf("Write: %v", err)
			}
			if got := h.statFile(t, sb, "f").Mode; got != c.want {
				t.Errorf("Write with mode %o left mode %o, want %o", c.mode, got, c.want)
			}
		}
	}},
	{"NoClobber leaves an existing file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		once := atoll.WriteOptions{NoClobber: true}
		if _, err := atoll.Files(sb).Write(h.newContext(t), "f", strings.NewReader("first"), once); err != nil {
			t.Errorf("the first Write: %v", err)
		}
		_, err := atoll.Files(sb).Write(h.newContext(t), "f", strings.NewReader("second"), once)
		wantKind(t, "the second Write", err, atoll.ErrAlreadyExists)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("error %v does not match fs.ErrExist", err)
		}
		h.checkContent(t, sb, "f", "first")
	}},
	{"a Write with Sync replaces the file and makes its directories", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, text := range []string{"first", "second"} {
			info, err := atoll.Files(sb).Write(h.newContext(t), "d/f", strings.NewReader(text), atoll.WriteOptions{Mode: 0o640, Sync: true})
			if err != nil || info.Size != int64(len(text)) || info.Mode != 0o640 {
				t.Errorf("Write: %+v, %v", info, err)
			}
			h.checkContent(t, sb, "d/f", text)
		}
		h.checkList(t, sb, "d", false, "/work/d/f")
	}},
	{"a Write whose reader fails leaves the old file and nothing else", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "d/f", "old")
		broken := io.MultiReader(bytes.NewReader(patternBytes(3<<20)), failingReader{})
		for _, name := range []string{"d/f", "d/new"} {
			if _, err := atoll.Files(sb).Write(h.newContext(t), name, broken, atoll.WriteOptions{}); err == nil {
				t.Errorf("Write(%s) of a reader that fails succeeded", name)
			}
		}
		h.checkContent(t, sb, "d/f", "old")
		h.checkList(t, sb, "d", false, "/work/d/f")
	}},
	{"a Write whose context ends halfway leaves the old file and nothing else", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "d/f", "old")
		for _, name := range []string{"d/f", "d/new"} {
			ctx, cancel := context.WithCancel(h.newContext(t))
			half := readerFunc(func([]byte) (int, error) { cancel(); return 0, io.EOF })
			r := io.MultiReader(bytes.NewReader(patternBytes(3<<20)), half, bytes.NewReader(make([]byte, 64<<20)))
			runWithin(t, h.shortLimit(), "Write", func() {
				_, err := atoll.Files(sb).Write(ctx, name, r, atoll.WriteOptions{})
				wantCtx(t, "Write("+name+")", err, context.Canceled)
			})
			cancel()
		}
		h.checkContent(t, sb, "d/f", "old")
		h.waitUntil(t, h.shortLimit(), func() error {
			list, err := atoll.Files(sb).List(h.newContext(t), "d", false)
			if err == nil && (len(list) != 1 || list[0].Name != "f") {
				err = fmt.Errorf("the directory holds %+v", list)
			}
			return err
		})
	}},
	{"a reader never sees a partly written file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "f", strings.Repeat("a", 1<<20))
		done := make(chan error, 1)
		go func() {
			var err error
			for i := range 20 {
				err = errors.Join(err, atoll.WriteFile(h.newContext(t), sb, "f", bytes.Repeat([]byte{"ab"[i%2]}, 1<<20), 0))
			}
			done <- err
		}()
		for running := true; running; {
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("WriteFile: %v", err)
				}
				running = false
			default:
			}
			got, err := atoll.ReadFile(h.newContext(t), sb, "f")
			if err != nil || len(got) != 1<<20 || bytes.Count(got, got[:1]) != len(got) {
				t.Fatalf("a reader saw %d bytes of two writes, %v", len(got), err)
			}
		}
	}},
	{"List is sorted by path, and recursive when asked", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for _, name := range []string{"d/b", "d/a/x", "d/a/y", "d/c/deep/er"} {
			h.writeFile(t, sb, name, name)
		}
		if err := atoll.Files(sb).Mkdir(h.newContext(t), "d/empty", 0o755); err != nil {
			t.Fatalf("Mkdir: %v", err)
		}
		h.makeLink(t, sb, "d/link", "a")
		h.checkList(t, sb, "d", false, "/work/d/a", "/work/d/b", "/work/d/c", "/work/d/empty", "/work/d/link")
		h.checkList(t, sb, "d", true, "/work/d/a", "/work/d/a/x", "/work/d/a/y", "/work/d/b", "/work/d/c",
			"/work/d/c/deep", "/work/d/c/deep/er", "/work/d/empty", "/work/d/link")
		h.checkList(t, sb, "d/empty", true)
	}},
	{"Mkdir makes parents and accepts an existing directory", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		for range 2 {
			if err := atoll.Files(sb).Mkdir(h.newContext(t), "a/b/c", 0o750); err != nil {
				t.Errorf("Mkdir: %v", err)
			}
		}
		if st := h.statFile(t, sb, "a/b/c"); st.Type != atoll.TypeDirectory || st.Mode != 0o750 {
			t.Errorf("Stat = %+v, want a directory of mode 0750", st)
		}
		h.writeFile(t, sb, "f", "x")
		wantKind(t, "Mkdir over a file", atoll.Files(sb).Mkdir(h.newContext(t), "f", 0o755), atoll.ErrAlreadyExists, atoll.ErrInvalid)
		wantKind(t, "Mkdir below a file", atoll.Files(sb).Mkdir(h.newContext(t), "f/d", 0o755), atoll.ErrInvalid, atoll.ErrNotExist, atoll.ErrAlreadyExists)
	}},
	{"Rename moves files and directories, and replaces a file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "a", "a")
		h.writeFile(t, sb, "b", "b")
		h.writeFile(t, sb, "d/f", "f")
		for from, to := range map[string]string{"a": "b", "d": "e"} {
			if err := atoll.Files(sb).Rename(h.newContext(t), from, to); err != nil {
				t.Errorf("Rename(%s, %s): %v", from, to, err)
			}
			h.checkMissing(t, sb, from)
		}
		h.checkContent(t, sb, "b", "a")
		h.checkContent(t, sb, "e/f", "f")
		wantKind(t, "Rename of nothing", atoll.Files(sb).Rename(h.newContext(t), "nothing", "x"), atoll.ErrNotExist)
	}},
	{"Remove deletes files, links and empty directories, and others only if recursive", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "keep/f", "kept")
		h.writeFile(t, sb, "d/sub/f", "f")
		h.makeLink(t, sb, "d/link", "../keep")
		if err := atoll.Files(sb).Remove(h.newContext(t), "d", false); err == nil {
			t.Error("Remove of a full directory succeeded without recursive")
		} else {
			wantKind(t, "Remove of a full directory", err, atoll.ErrInvalid, atoll.ErrConflict, atoll.ErrAlreadyExists)
		}
		h.checkContent(t, sb, "d/sub/f", "f")
		if err := atoll.Files(sb).Remove(h.newContext(t), "d", true); err != nil {
			t.Errorf("Remove: %v", err)
		}
		h.checkMissing(t, sb, "d")
		h.checkContent(t, sb, "keep/f", "kept")
		h.makeLink(t, sb, "link", "keep")
		if err := atoll.Files(sb).Mkdir(h.newContext(t), "empty", 0o755); err != nil {
			t.Errorf("Mkdir: %v", err)
		}
		for _, name := range []string{"link", "empty"} {
			if err := atoll.Files(sb).Remove(h.newContext(t), name, false); err != nil {
				t.Errorf("Remove(%s): %v", name, err)
			}
			h.checkMissing(t, sb, name)
		}
		h.checkContent(t, sb, "keep/f", "kept")
	}},
	{"files belong to the default user, with its permissions", []need{needFiles, needUsers, needIsolation}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{User: "1234:2345"})
		h.writeFile(t, sb, "d/f", "x")
		for _, name := range []string{"d", "d/f"} {
			if st := h.statFile(t, sb, name); st.UID != 1234 || st.GID != 2345 {
				t.Errorf("%s belongs to %d:%d, want 1234:2345", name, st.UID, st.GID)
			}
		}
		if code := h.runForCode(t, sb, scriptCommand("store", "d/f", "from inside")); code != 0 {
			t.Errorf("the user's process cannot write the user's file: exit %d", code)
		}
		h.checkContent(t, sb, "d/f", "from inside\n")
		err := atoll.WriteFile(h.newContext(t), sb, "/usr/new", []byte("x"), 0)
		wantKind(t, "WriteFile where only root may", err, atoll.ErrDenied)
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("error %v does not match fs.ErrPermission", err)
		}
	}},
	{"a missing file is ErrNotExist", []need{needFiles}, func(t *testing.T, h *harness) {
		f := atoll.Files(h.plainSandbox(t))
		_, _, err := f.Read(h.newContext(t), "no", 0)
		wantKind(t, "Read", err, atoll.ErrNotExist)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("error %v does not match fs.ErrNotExist", err)
		}
		_, err = f.Stat(h.newContext(t), "no/deeper")
		wantKind(t, "Stat", err, atoll.ErrNotExist)
		_, err = f.List(h.newContext(t), "no", false)
		wantKind(t, "List", err, atoll.ErrNotExist)
		wantKind(t, "Remove", f.Remove(h.newContext(t), "no", false), atoll.ErrNotExist)
		wantKind(t, "WriteTar", f.WriteTar(h.newContext(t), "no", io.Discard), atoll.ErrNotExist)
		for _, err := range f.Watch(h.newContext(t), "no", false) {
			wantKind(t, "Watch", err, atoll.ErrNotExist)
			break
		}
	}},
	{"Read refuses a directory, and List refuses a file", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		h.writeFile(t, sb, "d/f", "x")
		_, _, err := atoll.Files(sb).Read(h.newContext(t), "d", 0)
		wantKind(t, "Read of a directory", err, atoll.ErrInvalid)
		_, err = atoll.Files(sb).Write(h.newContext(t), "d", strings.NewReader("x"), atoll.WriteOptions{})
		wantKind(t, "Write over a directory", err, atoll.ErrInvalid, atoll.ErrAlreadyExists)
		_, err = atoll.Files(sb).List(h.newContext(t), "d/f", false)
		wantKind(t, "List of a file", err, atoll.ErrInvalid)
		h.checkList(t, sb, "d", false, "/work/d/f")
	}},
	{"neither .. nor an absolute name nor a link leads out of the sandbox", []need{needFiles}, checkFileEscapes},
	{"a tree survives WriteTar and ReadTar", []need{needFiles}, checkTarRoundTrip},
	{"a tar has the holes of files", []need{needFiles}, checkTarHoles},
	{"ReadTar refuses an entry that leads out, and unpacks nothing after it", []need{needFiles}, checkTarEscapes},
	{"programs inside that watch a directory see what changes from outside", []need{needFiles, needIsolation}, checkEventsInside},
	{"Watch yields synced, then changes", []need{needFiles}, checkWatch},
	{"a Watch ends with its context's error", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		ctx, cancel := context.WithCancel(h.newContext(t))
		var last error
		for ev, err := range atoll.Files(sb).Watch(ctx, ".", true) {
			if last = err; err == nil && ev.Type == atoll.FileSynced {
				cancel()
			}
		}
		cancel()
		wantCtx(t, "Watch", last, context.Canceled)
	}},
	{"files of a stopped sandbox are ErrStopped, those of a removed one ErrNotFound", []need{needFiles}, func(t *testing.T, h *harness) {
		sb := h.plainSandbox(t)
		if !h.p.Info().Caps.Volumes {
			if err := sb.Stop(h.newContext(t), 0); err != nil {
				t.Fatalf("Stop: %v", err)
			}
			_, err := atoll.ReadFile(h.newContext(t), sb, "f")
			wantKind(t, "ReadFile of a stopped sandbox", err, atoll.ErrStopped)
		}
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		_, err := atoll.ReadFile(h.newContext(t), sb, "f")
		wantKind(t, "ReadFile of a removed sandbox", err, atoll.ErrNotFound)
	}},
}

// failingReader is a reader that always fails.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("the source broke") }

// A readerFunc is an io.Reader that calls itself.
type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(p []byte) (int, error) { return r(p) }

// rootFile returns the name of a file in the sandbox's root file system. If the root is the host's, the
// file is in the work directory.
func (h *harness) rootFile(name string) string {
	if seesHost(h.p.Info()) {
		return "/work/" + name
	}
	return "/tmp/" + name
}

// writeFile writes a file, or fails the test.
func (h *harness) writeFile(t *testing.T, sb atoll.Sandbox, name, text string) {
	t.Helper()
	if err := atoll.WriteFile(h.newContext(t), sb, name, []byte(text), 0); err != nil {
		t.Fatalf("WriteFile(%q): %v", name, err)
	}
}

// checkContent checks the content of a file.
func (h *harness) checkContent(t *testing.T, sb atoll.Sandbox, name, want string) {
	t.Helper()
	got, err := atoll.ReadFile(h.newContext(t), sb, name)
	if err != nil || string(got) != want {
		t.Errorf("ReadFile(%q) = %q, %v; want %q", name, got, err, want)
	}
}

// checkMissing checks that the file does not exist.
func (h *harness) checkMissing(t *testing.T, sb atoll.Sandbox, name string) {
	t.Helper()
	if st, err := atoll.Files(sb).Stat(h.newContext(t), name); err == nil {
		t.Errorf("%q exists: %+v", name, st)
	} else if k := atoll.KindOf(err); k != atoll.ErrNotExist && k != atoll.ErrInvalid {
		t.Errorf("Stat(%q): %v", name, err)
	}
}

// statFile returns the file's info, or fails the test.
func (h *harness) statFile(t *testing.T, sb atoll.Sandbox, name string) atoll.FileInfo {
	t.Helper()
	st, err := atoll.Files(sb).Stat(h.newContext(t), name)
	if err != nil {
		t.Fatalf("Stat(%q): %v", name, err)
	}
	return st
}

// checkList checks the paths that List returns.
func (h *harness) checkList(t *testing.T, sb atoll.Sandbox, name string, recursive bool, want ...string) {
	t.Helper()
	list, err := atoll.Files(sb).List(h.newContext(t), name, recursive)
	if err != nil {
		t.Errorf("List(%q): %v", name, err)
		return
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Path)
		if !strings.HasSuffix(f.Path, "/"+f.Name) {
			t.Errorf("List(%q): name %q of path %q", name, f.Name, f.Path)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("List(%q, %v) = %q, want %q", name, recursive, got, want)
	}
}

// makeLink makes a symbolic link by unpacking a tar, because an FS has no method for links.
func (h *harness) makeLink(t *testing.T, sb atoll.Sandbox, name, target string) {
	t.Helper()
	dir, base := ".", name
	if i := strings.LastIndex(name, "/"); i >= 0 {
		dir, base = name[:i], name[i+1:]
	}
	hdr := tar.Header{Name: base, Linkname: target, Typeflag: tar.TypeSymlink, Mode: 0o777}
	if err := atoll.Files(sb).ReadTar(h.newContext(t), dir, packEntries(t, hdr)); err != nil {
		t.Fatalf("ReadTar of a link to %q: %v", target, err)
	}
}

// sameInfo reports whether the infos are equal.
func sameInfo(a, b atoll.FileInfo) bool {
	a.Modified, b.Modified = a.Modified.Round(0).UTC(), b.Modified.Round(0).UTC()
	a.Changed, b.Changed = time.Time{}, time.Time{} // Write does not know it
	return a == b
}
