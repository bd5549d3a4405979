package tools_test

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
	"github.com/seed46cd37a8/atoll/agent/tools/settings"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestOutput(t *testing.T) {
	b := newBench(t, tools.Options{MaxOutput: 20})
	b.call("sandbox_exec", m{"command": "printf 'äääää'; printf 1234567890 >&2"}).wantFields("stdout", "äääää", "stderr", "1234567890", "truncated", nil, "process_id", nil)
	b.call("sandbox_exec", m{"command": "printf 'xääääääääääää'; printf 123 >&2"}).wantFields("stdout", "xäää\n[... 10 bytes left out ...]\nääää", "stderr", "123", "truncated", true)
	b.call("sandbox_exec", m{"command": "printf 123456789; printf 123 >&2", "max_output": 6}).wantFields("stdout", "1\n[... 6 bytes left out ...]\n89", "stderr", "123")
	b.call("sandbox_exec", m{"command": `printf 'a\377b'`}).wantFields("stdout", "a\ufffdb", "truncated", nil)
	b.call("sandbox_exec", m{"command": "true", "max_output": -1}).wantError(atoll.ErrInvalid, "from 1 to 20")
	r := b.call("sandbox_exec", m{"command": "head -c 50000000 /dev/zero | tr '\\0' x; printf 'the error.'", "max_output": 1000}).wantFields("stdout", "xxxxxxxxxx\n[... 49999990 bytes left out ...]\nthe error.", "truncated", true)
	if note := fmt.Sprint(r.out["note"]); !strings.HasPrefix(note, "49999990 bytes of stdout were left out: sandbox_process_read with this process_id and stdout_offset 489") || !strings.Contains(note, "for all, redirect it to a file") {
		t.Errorf("the note is %q", note)
	}
}

// The rest of an output can be read, of a command that has ended as of one in the background.
func TestOutputThatWasLeftOut(t *testing.T) {
	b := newBench(t, tools.Options{})
	var all strings.Builder
	for i := range 20_000 {
		fmt.Fprintln(&all, i+1)
	}
	r := b.call("sandbox_exec", m{"command": "seq 20000; seq 20000 >&2"}).wantFields("truncated", true)
	ended := r.out["process_id"]
	for name, want := range map[string]string{"stdout": all.String(), "stderr": all.String()} {
		text := fmt.Sprint(r.out[name])
		head, rest, _ := strings.Cut(text, "[... ")
		var omitted int
		if _, err := fmt.Sscanf(rest, "%d bytes left out ...]", &omitted); err != nil {
			t.Fatalf("%s is %q", name, text)
		}
		_, tail, _ := strings.Cut(rest, "\n")
		if got := len(head) + omitted + len(tail); got != len(want) || !strings.HasPrefix(want, head) || !strings.HasSuffix(want, tail) || len(text) > 18000 || len(text) < 10500 {
			t.Errorf("%s has %d bytes: %d, %d left out, %d", name, len(want), len(head), omitted, len(tail))
		}
		if note := fmt.Sprintf("%d bytes of %s were left out: sandbox_process_read with this process_id and %[2]s_offset %d reads them.", omitted, name, len(head)); !strings.Contains(fmt.Sprint(r.out["note"]), note) {
			t.Errorf("the note is %q, want %q", r.out["note"], note)
		}
		got, offset := head, len(head)
		for range 100 {
			next := b.call("sandbox_process_read", m{"process_id": ended, name + "_offset": offset}).wantFields("running", false)
			got += fmt.Sprint(next.out[name])
			offset = int(next.out[name+"_offset"].(float64))
			if offset == len(want) {
				break
			}
			if !strings.Contains(fmt.Sprint(next.out["note"]), fmt.Sprintf("%d more bytes of %s follow: %[2]s_offset %d reads on.", len(want)-offset, name, offset)) {
				t.Errorf("the note is %q", next.out["note"])
			}
		}
		if got != want {
			t.Errorf("the parts of %s have %d bytes, want %d", name, len(got), len(want))
		}
	}
	id := b.call("sandbox_exec", m{"command": "seq 20000; sleep 1000", "background": true}).out["process_id"]
	for end := time.Now().Add(testenv.Scale(20 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		r = b.call("sandbox_process_read", m{"process_id": id}).wantFields("running", true)
		if int(r.out["stdout_offset"].(float64)) == all.Len() {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it printed %v", r.out)
		}
	}
	if text := fmt.Sprint(r.out["stdout"]); !strings.HasPrefix(text, "1\n2\n") || !strings.HasSuffix(text, "\n20000\n") || len(text) > settings.DefaultOutput+100 || !strings.Contains(fmt.Sprint(r.out["note"]), "left out: stdout_offset") {
		t.Errorf("a first look is %v", r.out)
	}
	b.call("sandbox_process_read", m{"process_id": id, "stdout_offset": all.Len()}).wantFields("stdout", "", "truncated", nil, "note", nil)
}

// Long files and lists are read part by part.
func TestPartsOfFilesAndLists(t *testing.T) {
	b := newBench(t, tools.Options{})
	b.call("sandbox_exec", m{"command": "seq 1 20000 > lines; head -c 30000 /dev/urandom > bytes; md5sum < bytes; mkdir d && cd d && seq 10000 10999 | xargs touch"}).wantFields("exit_code", 0)
	for name, size := range map[string]int{"lines": 108894, "bytes": 30000} {
		var got []byte
		for offset := any(0); offset != nil; {
			r := b.call("sandbox_fs_read", m{"path": name, "offset": offset}).wantFields("size_bytes", size)
			content := fmt.Sprint(r.out["content"])
			if len(content) > settings.DefaultOutput {
				t.Errorf("a part of %s has %d bytes", name, len(content))
			}
			if r.out["encoding"] == "base64" {
				data, err := base64.StdEncoding.DecodeString(content)
				if err != nil {
					t.Fatal(err)
				}
				content = string(data)
			}
			got = append(got, content...)
			if offset = r.out["next_offset"]; offset != nil && !strings.Contains(fmt.Sprint(r.out["note"]), fmt.Sprintf("%d more bytes follow: offset %v reads on.", size-len(got), offset)) {
				t.Errorf("the note is %v", r.out["note"])
			}
		}
		b.call("sandbox_fs_write", m{"path": "copy", "content": base64.StdEncoding.EncodeToString(got), "encoding": "base64"}).wantFields("size_bytes", size)
		b.call("sandbox_exec", m{"command": "cmp copy " + name}).wantFields("exit_code", 0)
	}
	for tool, in := range map[string]m{"sandbox_fs_list": {"path": "d"}, "sandbox_fs_search": {"name": "1*", "path": "d", "max_results": 1000}} {
		n := 10000
		for offset := any(0); offset != nil; {
			in["offset"] = offset
			r := b.call(tool, in).wantFields()
			list, _ := cmp.Or(r.out["entries"], r.out["matches"]).([]any)
			for _, x := range list {
				e := x.(map[string]any)
				if name := filepath.Base(fmt.Sprint(cmp.Or(e["name"], e["path"]))); name != fmt.Sprint(n) {
					t.Fatalf("%s gives %s, want %d", tool, name, n)
				}
				n++
			}
			offset = r.out["next_offset"]
		}
		if n != 11000 {
			t.Errorf("%s ends before %d", tool, n)
		}
	}
	b.call("sandbox_fs_list", m{"path": "d", "offset": 999}).wantFields("total", 1000, "truncated", nil, "entries", "[map[mode:0644 name:10999 size_bytes:0 type:file]]")
	b.call("sandbox_fs_list", m{"path": "d", "offset": 5000}).wantFields("total", 1000, "truncated", nil, "entries", "[]")
	b.call("sandbox_fs_list", m{"offset": -1}).wantError(atoll.ErrInvalid, "offset")
	b.call("sandbox_fs_search", m{"name": "*", "offset": -1}).wantError(atoll.ErrInvalid, "offset")
}
