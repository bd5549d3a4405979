package tools_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// answer calls a tool as a front end for models does.
func (b *bench) getAnswer(name string, input string) *tools.Answer {
	b.t.Helper()
	a, err := b.Answer(b.t.Context(), b.caller, name, []byte(input), nil)
	if err != nil {
		b.t.Fatalf("%s %s: %v", name, input, err)
	}
	return a
}

// A file is read by lines, which models see with their numbers.
func TestReadLines(t *testing.T) {
	b := newBench(t, tools.Options{OutputLimit: 1000})
	b.call("sandbox_exec", m{"command": "seq 1000 > lines; printf 'a\\r\\nb' > short; printf 'x\\0y\\n' > binary; printf 'a\\377\\n' > latin; head -c 5000 /dev/zero | tr '\\0' x > long; (echo; echo end) >> long; touch empty"}).wantFields("exit_code", 0)
	for _, tt := range []struct{ in, want string }{
		{`{"path": "lines", "line": 10, "lines": 2}`, "    10\t10\n    11\t11\nMore lines follow: line 12 reads on."},
		{`{"path": "lines", "line": 999}`, "   999\t999\n  1000\t1000"},
		{`{"path": "lines", "line": 999, "lines": 2}`, "   999\t999\n  1000\t1000"},
		{`{"path": "lines", "lines": 1}`, "     1\t1\nMore lines follow: line 2 reads on."},
		{`{"path": "lines", "line": 2000}`, "The file has 1000 lines."},
		{`{"path": "short", "line": 1}`, "     1\ta\r\n     2\tb"},
		{`{"path": "short", "line": 3}`, "The file has 2 lines."},
		{`{"path": "latin", "line": 1}`, "     1\ta\ufffd"},
		{`{"path": "empty", "line": 1}`, "The file has 0 lines."},
		{`{"path": "long", "line": 2}`, "     2\tend"},
		{`{"path": "short"}`, "a\r\nb"},
	} {
		if got := b.getAnswer("sandbox_fs_read", tt.in).Text; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := b.getAnswer("sandbox_fs_read", `{"path": "long", "line": 1}`).Text; !strings.HasPrefix(got, "     1\txxx") || len(got) > 1200 || !strings.Contains(got, "cut: read it by offset") {
		t.Errorf("a long line: %d bytes, %.100s", len(got), got)
	}
	var all strings.Builder
	for line := 1; line > 0; {
		r := b.call("sandbox_fs_read", m{"path": "lines", "line": line}).wantFields("line", line)
		all.WriteString(fmt.Sprint(r.out["content"]))
		next, _ := r.out["next_line"].(float64)
		line = int(next)
	}
	b.call("sandbox_fs_write", m{"path": "copy", "content": all.String()})
	b.call("sandbox_exec", m{"command": "cmp copy lines"}).wantFields("exit_code", 0)
	b.call("sandbox_fs_read", m{"path": "binary", "line": 1}).wantError(atoll.ErrInvalid, "is not text")
	b.call("sandbox_fs_read", m{"path": "lines", "line": 1, "offset": 3}).wantError(atoll.ErrInvalid, "cannot be combined")
	b.call("sandbox_fs_read", m{"path": "lines", "line": -1}).wantError(atoll.ErrInvalid, "negative")
	b.call("sandbox_fs_read", m{"path": "none", "line": 1}).wantError(atoll.ErrNotExist)
}

// Images and PDFs come as media; programs that call for JSON get their bytes as before.
func TestReadImages(t *testing.T) {
	b := newBench(t, tools.Options{})
	var picture bytes.Buffer
	if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 30, 20))); err != nil {
		t.Fatal(err)
	}
	webp := append([]byte("RIFF\x1a\x00\x00\x00WEBPVP8L"), make([]byte, 20)...)
	for name, data := range map[string][]byte{
		"good.png": picture.Bytes(), "broken.png": picture.Bytes()[:20], "x.webp": webp, "x.pdf": []byte("%PDF-1.7\n\xff"), "large.gif": append([]byte("GIF89a"), make([]byte, 4_000_000)...),
		"large.pdf": append([]byte("%PDF-"), make([]byte, 4_000_000)...),
	} {
		b.call("sandbox_fs_write", m{"path": name, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"}).wantFields("path", "/work/"+name)
	}
	for _, tt := range []struct {
		path, text, kind string
		data             []byte
	}{
		{"good.png", fmt.Sprintf("This is an image, image/png, of 30 x 20 pixels and %d bytes.", picture.Len()), "image/png", picture.Bytes()},
		{"x.webp", fmt.Sprintf("This is an image, image/webp, of %d bytes.", len(webp)), "image/webp", webp},
		{"broken.png", "This is a broken image, image/png, of 20 bytes: unexpected EOF.", "", nil},
		{"large.gif", "This is an image, image/gif, of 4000006 bytes, more than the 3500000 that can be returned: make it smaller with a program.", "", nil},
		{"x.pdf", "This is a PDF of 10 bytes. If you do not see it, extract its text with sandbox_exec, for example by pdftotext.", "application/pdf", []byte("%PDF-1.7\n\xff")},
		{"large.pdf", "This is a PDF of 4000005 bytes, more than the 3500000 that can be returned: extract its text with sandbox_exec, for example by pdftotext.", "", nil},
	} {
		a := b.getAnswer("sandbox_fs_read", `{"path": "`+tt.path+`"}`)
		kind, data := "", []byte(nil)
		if a.Media != nil {
			kind, data = a.Media.Type, a.Media.Data
		}
		if a.Text != tt.text || kind != tt.kind || !bytes.Equal(data, tt.data) || !strings.Contains(string(a.JSON), `"encoding":"none"`) {
			t.Errorf("%s: %q, %s, %d bytes, %s; want %q, %s", tt.path, a.Text, kind, len(data), a.JSON, tt.text, tt.kind)
		}
	}
	if a := b.getAnswer("sandbox_fs_read", `{"path": "good.png", "encoding": "base64"}`); a.Media != nil || !strings.Contains(a.Text, base64.StdEncoding.EncodeToString(picture.Bytes())) {
		t.Errorf("as base64: %+v", a)
	}
	b.call("sandbox_fs_read", m{"path": "good.png"}).wantFields("encoding", "base64", "content", base64.StdEncoding.EncodeToString(picture.Bytes()))
}

// One call makes several edits, or none, and shows what has changed.
func TestEdits(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_fs_write", m{"path": "f", "content": "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"})
	if got, want := b.getAnswer("sandbox_fs_edit", `{"path": "f", "edits": [{"old_text": "two", "new_text": "2"}, {"old_text": "2\nthree", "new_text": "2\n3"}, {"old_text": "e\n", "new_text": "E\n", "replace_all": true}]}`).Text,
		"Replacements in /work/f: 5\n@@ -1,9 +1,9 @@\n-one\n-two\n-three\n+onE\n+2\n+3\n four\n-five\n+fivE\n six\n seven\n eight\n-nine\n+ninE"; got != want {
		t.Errorf("several edits:\n%s\nwant\n%s", got, want)
	}
	b.call("sandbox_fs_edit", m{"path": "f", "edits": []m{{"old_text": "four", "new_text": "4"}, {"old_text": "none", "new_text": ""}}}).
		wantError(atoll.ErrInvalid, "edit 2 of 2, and no edit was made: /work/f does not contain this old_text")
	b.call("sandbox_fs_edit", m{"path": "f", "edits": []m{{"old_text": "", "new_text": "4"}}}).wantError(atoll.ErrInvalid, "old_text is empty")
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "four", "edits": []m{{"old_text": "four", "new_text": "4"}}}).wantError(atoll.ErrInvalid, "put all of them into edits")
	b.call("sandbox_fs_edit", m{"path": "f", "edits": "four"}).wantError(atoll.ErrInvalid, `the input "edits" is a string: it must be a list of objects`)
	b.call("sandbox_fs_edit", m{"path": "f", "old_text": "four\n", "new_text": ""}).wantFields("replacements", 1)
	b.call("sandbox_fs_read", m{"path": "f"}).wantFields("content", "onE\n2\n3\nfivE\nsix\nseven\neight\nninE\n")
	b.call("sandbox_exec", m{"command": "seq 20000 > many; printf 'a\\377' > bytes"}).wantFields("exit_code", 0)
	r := b.call("sandbox_fs_edit", m{"path": "many", "old_text": "1", "new_text": "I", "replace_all": true}).wantFields("size_bytes", 108894)
	if text := fmt.Sprint(r.out["diff"]); len(text) > 4100 || !strings.Contains(text, "left out") {
		t.Errorf("a long diff has %d bytes", len(text))
	}
	b.call("sandbox_fs_edit", m{"path": "bytes", "old_text": "a", "new_text": "b"}).wantFields("replacements", 1, "diff", nil)
}

// Programs without a terminal know that, unless somebody says otherwise.
func TestNoTerminal(t *testing.T) {
	images := frontmatter.Images{Shortcuts: map[string]string{"": "host", "bash": "host"}}
	b := newBench(t, tools.Options{Images: images, OwnPrograms: true})
	b.call("sandbox_exec", m{"command": "echo $TERM"}).wantFields("stdout", "dumb\n")
	b.call("sandbox_exec", m{"command": "echo $TERM", "env": m{"TERM": "vt100"}}).wantFields("stdout", "vt100\n")
	b.call("sandbox_run", m{"runtime": "bash", "code": "echo $TERM"}).wantFields("stdout", "dumb\n")
	b = newBench(t, tools.Options{Sandbox: atoll.Spec{Env: []string{"TERM=xterm"}}})
	b.call("sandbox_exec", m{"command": "echo $TERM"}).wantFields("stdout", "xterm\n")
}
