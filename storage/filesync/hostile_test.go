package filesync_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/objectstore"
)

// putText writes an object below the prefix.
func putText(t *testing.T, b objectstore.Bucket, key, text string) {
	t.Helper()
	if _, err := b.Put(t.Context(), prefix+"/"+key, strings.NewReader(text), int64(len(text)), objectstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}

const md5OfX = "9dd4e461268c8034f5c8564e155c67a6" // of "x"

// entryOf returns an entry of a state file, as other programs write it.
func entryOf(path string) string {
	text, _ := json.Marshal(path)
	return fmt.Sprintf(`{"path":%s,"checksum":%q,"size":1,"modified_at":1704067100}`, text, md5OfX)
}

// Other programs write a version as a state file with the files beside it.
func TestForeignVersion(t *testing.T) {
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	putText(t, b, "1704067200/.sandbox-state", `{"files":[`+entryOf("z/y")+","+entryOf("a")+`],"last_synced_at":1704067200,"version":"1.0","extra":{"a":[1,2]}}`)
	putText(t, b, "1704067200/a", "x")
	putText(t, b, "1704067200/z/y", "x")
	p := newPlace(t)
	st := p.pull(r, filesync.PullOptions{Version: 1704067200})
	if p.readText("a") != "x" || p.readText("z/y") != "x" || st.FilesDownloaded != 2 || st.Failed > 0 {
		t.Errorf("%+v: %q %q", st, p.readText("a"), p.readText("z/y"))
	}
	if info, err := os.Stat(p.filePath("a")); err != nil || info.ModTime().Unix() != 1704067100 {
		t.Errorf("modified %v, %v", info.ModTime(), err)
	}
	p.push(r)
	q := newPlace(t)
	q.pull(r, filesync.PullOptions{})
	checkEqual(t, p, q)
}

// Paths of a state file never lead outside, however they are written, and its checksums
// and sizes are verified.
func TestHostileVersion(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for name, bad := range map[string]string{
		"up":             entryOf("../out"),
		"up from below":  entryOf("a/../../out"),
		"absolute":       entryOf(outside),
		"nothing":        entryOf(""),
		"dot":            entryOf("."),
		"twice a slash":  entryOf("a//b"),
		"slash":          entryOf("a/"),
		"NUL":            entryOf("a\x00b"),
		"long":           entryOf(strings.Repeat("a/", 3000) + "a"),
		"long element":   entryOf(strings.Repeat("a", 256)),
		"state":          entryOf(".sandbox-state"),
		"state's own":    entryOf(".sandbox-state.tmp"),
		"below state":    entryOf(".sandbox-state/a"),
		"no MD5":         strings.Replace(entryOf("a"), md5OfX, "xyz", 1),
		"short MD5":      strings.Replace(entryOf("a"), md5OfX, md5OfX[:30], 1),
		"negative":       strings.Replace(entryOf("a"), `"size":1`, `"size":-1`, 1),
		"huge":           strings.Replace(entryOf("a"), `"size":1`, `"size":9223372036854775807`, 1),
		"text for size":  strings.Replace(entryOf("a"), `"size":1`, `"size":"1"`, 1),
		"no base64":      strings.Replace(entryOf("a"), `{`, `{"path_b64":"?",`, 1),
		"base64 up":      strings.Replace(entryOf("a"), `{`, `{"path_b64":"Li4vb3V0",`, 1),
		"type":           strings.Replace(entryOf("a"), `{`, `{"type":"other",`, 1),
		"no target":      strings.Replace(entryOf("a"), `{`, `{"type":"symlink",`, 1),
		"object up":      strings.Replace(entryOf("a"), `{`, `{"object":"../../../x",`, 1),
		"object":         strings.Replace(entryOf("a"), `{`, `{"object":"`+strings.Repeat("0", 32)+`/0",`, 1),
		"other bytes":    strings.Replace(entryOf("other"), md5OfX, strings.Repeat("0", 32), 1),
		"another length": strings.Replace(entryOf("other"), `"size":1`, `"size":2`, 1),
		"number":         `17`,
		"null":           `null`,
	} {
		t.Run(name, func(t *testing.T) {
			b := openBucket(t)
			r := newRemote(t, b, filesync.Options{MaxBytes: 1 << 20})
			putText(t, b, "5/.sandbox-state", `{"version":"1.0","last_synced_at":5,"files":[`+bad+","+entryOf("good")+`]}`)
			putText(t, b, "5/good", "x")
			putText(t, b, "5/other", "y")
			p := newPlace(t)
			st, err := r.Pull(t.Context(), p.Tree, filesync.PullOptions{Version: 5})
			if name == "huge" { // beyond the limit, or negative
				if err == nil && st.Failed != 1 {
					t.Errorf("Pull: %+v", st)
				}
				return
			}
			if err != nil || st.Failed != 1 || st.FilesDownloaded != 1 || p.readText("good") != "x" {
				t.Errorf("Pull: %+v, %v", st, err)
			}
			all, _ := filepath.Glob(filepath.Join(p.dir, "*"))
			if len(all) != 2 { // including the state file
				t.Errorf("there are %q", all)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(p.dir), "out")); err == nil {
				t.Error("it has led out")
			}
		})
	}
}

// Links stay links, and lead no pull outside the directory.
func TestLinksLeadNowhere(t *testing.T) {
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	outside := t.TempDir()
	putText(t, b, "5/.sandbox-state", `{"version":"1.0","files":[{"path":"d","type":"symlink","target":"`+outside+`","checksum":"`+md5OfX+`"},`+entryOf("d/file")+`,`+entryOf("e/file")+`]}`)
	putText(t, b, "5/d/file", "x")
	putText(t, b, "5/e/file", "x")
	p := newPlace(t)
	if err := os.Symlink(outside, p.filePath("e")); err != nil {
		t.Fatal(err)
	}
	st, err := r.Pull(t.Context(), p.Tree, filesync.PullOptions{Version: 5, Conflicts: filesync.KeepRemote})
	t.Logf("%+v, %v", st, err)
	filepath.WalkDir(outside, func(name string, _ fs.DirEntry, _ error) error {
		if name != outside {
			t.Errorf("there is %s", name)
		}
		return nil
	})
}

// An unusable state file in the directory is replaced, and nothing is lost.
func TestStateFileOfNoUse(t *testing.T) {
	for name, text := range map[string]string{
		"empty":           "",
		"no JSON":         "#!/bin/sh\n",
		"cut":             `{"version":"1.0","last_synced_at":5,"sorted":true,"files":[` + entryOf("file"),
		"another version": `{"version":"2.0","files":[]}`,
		"no version":      `{"files":[]}`,
		"out of order":    `{"version":"1.0","sorted":true,"files":[` + entryOf("z") + "," + entryOf("file") + `]}`,
		"huge entry":      `{"version":"1.0","files":[{"path":"` + strings.Repeat("a", 1<<20) + `"}]}`,
		"deep":            `{"version":"1.0","a":` + strings.Repeat("[", 1<<17),
		"array":           `[]`,
		"two":             `{"version":"1.0","files":[]}{"version":"1.0","files":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			r := newRemote(t, openBucket(t), filesync.Options{Log: textLog(&log)})
			p, q := newPlace(t), newPlace(t)
			p.writeText("file", "1")
			p.writeText("other", "1")
			p.push(r)
			q.pull(r, filesync.PullOptions{})
			q.writeText(filesync.StateName, text)
			q.writeText("file", "2")
			st := q.pull(r, filesync.PullOptions{})
			if q.readText("file") != "2" || q.readText("other") != "1" || len(st.Conflicts) != 1 {
				t.Errorf("Pull: %+v; file is %q", st, q.readText("file"))
			}
			if !strings.Contains(log.String(), "state file is unusable") {
				t.Errorf("the log has %q", log.String())
			}
			q.writeText(filesync.StateName, text)
			q.push(r)
			p.pull(r, filesync.PullOptions{})
			checkEqual(t, p, q)
		})
	}
}

// Unreadable files are reported, and keep their state of the version before.
func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything: TestUnreadableAsUser does it as somebody else")
	}
	testUnreadable(t)
}

func testUnreadable(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p := newPlace(t)
	p.writeText("file", "1")
	p.writeText("dir/file", "1")
	p.writeText("other", "1")
	p.push(r)
	p.writeText("file", "22")
	p.writeText("other", "22")
	p.writeText("new", "22")
	for _, name := range []string{"file", "dir", "new"} {
		if err := os.Chmod(p.filePath(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(p.filePath("dir"), 0o755) })
	st, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{})
	if err != nil || st.Failed != 3 || len(st.Errors) != 3 {
		t.Fatalf("Push: %+v, %v; want errors about file, dir and new", st, err)
	}
	q := newPlace(t)
	q.pull(r, filesync.PullOptions{})
	if err := os.Chmod(q.filePath("dir"), 0o755); err != nil { // unreadable again, as in the version
		t.Fatal(err)
	}
	if q.readText("file") != "1" || q.readText("dir/file") != "1" || q.readText("other") != "22" {
		t.Errorf("there are %q, %q, %q", q.readText("file"), q.readText("dir/file"), q.readText("other"))
	}
	if st := p.pull(r, filesync.PullOptions{}); st.FilesDeleted > 0 {
		t.Errorf("Pull: %+v", st)
	}
}

func TestBounds(t *testing.T) {
	b := openBucket(t)
	p, q := newPlace(t), newPlace(t)
	for i := range 11 {
		p.writeText(fmt.Sprint(i), "0123456789")
	}
	p.push(newRemote(t, b, filesync.Options{}))
	for _, o := range []filesync.Options{{MaxFiles: 10}, {MaxBytes: 100}} {
		r := newRemote(t, b, o)
		if _, err := r.Push(t.Context(), p.Tree, filesync.PushOptions{}); atoll.KindOf(err) != atoll.ErrExhausted {
			t.Errorf("Push with %+v: %v", o, err)
		}
		if _, err := r.Pull(t.Context(), q.Tree, filesync.PullOptions{}); atoll.KindOf(err) != atoll.ErrExhausted {
			t.Errorf("Pull with %+v: %v", o, err)
		}
	}
	if all, _ := os.ReadDir(q.dir); len(all) > 0 {
		t.Errorf("there are %v", all)
	}
}

func TestIgnore(t *testing.T) {
	r := newRemote(t, openBucket(t), filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText(".atollignore", "# comment\n*.log\n!keep.log\n/build/\ndeep/**/tmp\n")
	for _, name := range []string{"a.log", "keep.log", "build/x", "src/build/x", "deep/a/b/tmp/x", "deep/a/x", "x/a.log"} {
		p.writeText(name, "1")
	}
	p.push(r)
	q.pull(r, filesync.PullOptions{})
	for name, want := range map[string]bool{"a.log": false, "keep.log": true, "build/x": false, "src/build/x": true, "deep/a/b/tmp/x": false, "deep/a/x": true, "x/a.log": false, ".atollignore": true} {
		if _, err := os.Stat(q.filePath(name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
	// Files ignored from now on vanish from new versions, but from no directory.
	q.writeText(".atollignore", "*.log\n")
	q.push(r)
	p.pull(r, filesync.PullOptions{})
	for _, name := range []string{"a.log", "keep.log", "build/x"} {
		if p.readText(name) != "1" {
			t.Errorf("%s: %s", name, p.readText(name))
		}
	}
}

func TestStale(t *testing.T) {
	now := time.Unix(10_000, 0)
	for _, tt := range []struct {
		state *filesync.State
		stale bool
	}{
		{nil, true}, {&filesync.State{}, true},
		{&filesync.State{LastSynced: 10_000}, false},
		{&filesync.State{LastSynced: 10_000 - 3600}, false},
		{&filesync.State{LastSynced: 10_000 - 3601}, true},
		{&filesync.State{LastSynced: 20_000}, false},
	} {
		if got := tt.state.Stale(now, time.Hour); got != tt.stale {
			t.Errorf("Stale of %+v is %v", tt.state, got)
		}
	}
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	p, q := newPlace(t), newPlace(t)
	p.writeText("file", "1")
	p.push(r)
	q.pull(r, filesync.PullOptions{IfStale: time.Hour})
	p.writeText("file", "22")
	p.push(r)
	if q.pull(r, filesync.PullOptions{IfStale: time.Hour}); q.readText("file") != "1" {
		t.Error("one that was fresh was pulled")
	}
	later := newRemote(t, b, filesync.Options{}.WithNow(func() time.Time { return time.Now().Add(2 * time.Hour) }))
	if q.pull(later, filesync.PullOptions{IfStale: time.Hour}); q.readText("file") != "22" {
		t.Error("one that was stale was not pulled")
	}
}

func TestPrune(t *testing.T) {
	b := openBucket(t)
	r := newRemote(t, b, filesync.Options{})
	p := newPlace(t)
	var versions []int64
	was := map[int64]string{}
	for i := range 6 {
		p.writeText("changes", fmt.Sprint(i))
		p.writeText("big", strings.Repeat(fmt.Sprint(i), 300<<10))
		p.writeText("stays", strings.Repeat("x", 300<<10))
		v := p.push(r).Version
		versions, was[v] = append(versions, v), p.content()
	}
	pruned, err := r.Prune(t.Context(), filesync.Keep{Last: 2})
	if err != nil || fmt.Sprint(pruned.Versions) != fmt.Sprint(versions[:4]) || pruned.Objects != 8 {
		t.Errorf("Prune: %+v, %v", pruned, err)
	}
	for _, v := range versions[4:] {
		q := newPlace(t)
		q.pull(r, filesync.PullOptions{Version: v})
		if q.content() != was[v] {
			t.Errorf("version %d: %s", v, firstDifference(was[v], q.content()))
		}
	}
	if _, err := r.Pull(t.Context(), newPlace(t).Tree, filesync.PullOptions{Version: versions[0]}); atoll.KindOf(err) != atoll.ErrNotExist {
		t.Errorf("a version that was pruned: %v", err)
	}
	later := newRemote(t, b, filesync.Options{}.WithNow(func() time.Time { return time.Now().Add(48 * time.Hour) }))
	if pruned, err := later.Prune(t.Context(), filesync.Keep{Within: 72 * time.Hour}); err != nil || len(pruned.Versions) > 0 {
		t.Errorf("Prune: %+v, %v", pruned, err)
	}
	if pruned, err := later.Prune(t.Context(), filesync.Keep{Within: 24 * time.Hour}); err != nil || len(pruned.Versions) != 1 {
		t.Errorf("Prune: %+v, %v", pruned, err)
	}
	q := newPlace(t)
	q.pull(r, filesync.PullOptions{})
	checkEqual(t, p, q)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":"1.0","last_synced_at":5,"files":[` + entryOf("a/b") + `]}`))
	f.Add([]byte(`{"files":null,"version":"1.0"}`))
	f.Add([]byte(`{"version":"1.0","sorted":true,"files":[{"path":"../a"},{"path_b64":"/w=="}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, _, err := filesync.Parse(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, file := range s.Files {
			if p := file.Path; !fs.ValidPath(strings.ToValidUTF8(p, "x")) || p == "." || strings.ContainsRune(p, 0) {
				t.Errorf("it accepts the path %q", p)
			}
		}
		var out bytes.Buffer
		if _, err := s.WriteTo(&out); err != nil {
			t.Fatalf("WriteTo: %v", err)
		}
		again, bad, err := filesync.Parse(bytes.NewReader(out.Bytes()))
		if err != nil || len(bad) > 0 || fmt.Sprint(again.Files) != fmt.Sprint(s.Files) {
			t.Errorf("read again: %v, %v\n%+v\n%+v", bad, err, s, again)
		}
	})
}
