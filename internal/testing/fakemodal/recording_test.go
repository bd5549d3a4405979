package fakemodal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

// recordedText returns the text of a recording and the index of its first chunk.
func recordedText(r *recording) (text string, first uint64) {
	for index := uint64(0); ; {
		batch, _, _ := r.batchAfter(index)
		if len(batch) == 0 {
			return text, first
		}
		if first == 0 {
			first = batch[0].index
		}
		for _, c := range batch {
			text += string(c.data[:1])
		}
		index = batch[len(batch)-1].index
	}
}

// Without readers, a recording drops the oldest chunks.
func TestRecordingDrops(t *testing.T) {
	r := newRecording()
	big := make([]byte, recordingLimit/4)
	for i := range 6 {
		big[0] = byte('a' + i)
		fmt.Fprintf(r, "%s", big)
	}
	if text, first := recordedText(r); text != "cdef" || first != 3 {
		t.Errorf("kept %q from %d, want cdef from 3", text, first)
	}
}

// A writer waits for the slowest reader, until that one ends or writers are muted.
func TestRecordingWaits(t *testing.T) {
	for name, release := range map[string]func(r *recording, leave context.CancelFunc){
		"the reader leaves": func(_ *recording, leave context.CancelFunc) { leave() },
		"it is muted":       func(r *recording, _ context.CancelFunc) { r.muteWriters() },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRecording()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			read := make(chan error, 1)
			go func() {
				_, err := r.streamChunks(ctx, 0, 3600, func([]chunk) error { <-ctx.Done(); return ctx.Err() })
				read <- err
			}()
			synctest.Wait() // the reader waits
			written := make(chan bool)
			go func() {
				for range 6 {
					_, _ = r.Write(make([]byte, recordingLimit/4)) // never fails
				}
				close(written)
			}()
			synctest.Wait()
			select {
			case <-written:
				t.Errorf("%s: the writer did not wait", name)
			default:
			}
			release(r, leave)
			<-written
			leave()
			if err := <-read; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: stream: %v", name, err)
			}
		})
	}
}

// A stream ends at its timeout, and the next one continues where it ended.
func TestRecordingStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecording()
		var got []string
		read := func(from uint64) (end bool) {
			end, err := r.streamChunks(t.Context(), from, 55, func(batch []chunk) error {
				for _, c := range batch {
					got = append(got, fmt.Sprintf("%d %s", c.index, c.data))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			return end
		}
		fmt.Fprint(r, "one")
		if read(0) {
			t.Error("the stream ended early")
		}
		fmt.Fprint(r, "two")
		r.closeRecording()
		if !read(1) {
			t.Error("the stream did not end")
		}
		if text := strings.Join(got, ", "); text != "1 one, 2 two" {
			t.Errorf("got %s", text)
		}
	})
}

// Logs consist of complete characters, however they were written.
func TestLogsAreText(t *testing.T) {
	l := newLogs()
	for _, part := range []string{"a\xe2", "\x82", "\xac \xff\xf0\x9f"} {
		if _, err := io.WriteString(l, part); err != nil {
			t.Fatal(err)
		}
	}
	l.closeLogs()
	var text string
	for batch, index := []chunk(nil), uint64(0); ; {
		if batch, _, _ = l.batchAfter(index); len(batch) == 0 {
			break
		}
		for _, log := range taskLogs(batch, 1) {
			text += log.GetData()
		}
		index = batch[len(batch)-1].index
	}
	if want := "a€ \uFFFD\uFFFD"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// Messages arrive in the order of their numbers, once; a client that sends too much waits.
func TestInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInput()
		put := func(number uint64, text string, eof bool) {
			if err := in.putMessage(t.Context(), number, message{[]byte(text), eof}); err != nil {
				t.Error(err)
			}
		}
		put(3, "c", false)
		put(1, "a", false)
		put(1, "x", false)
		put(2, strings.Repeat("b", inputLimit), false)
		waited := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { waited <- in.putMessage(ctx, 4, message{[]byte("lost"), false}) }()
		synctest.Wait()
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Errorf("put to a full input: %v", err)
		}
		go put(4, "d", true)
		b, err := io.ReadAll(in)
		if want := "a" + strings.Repeat("b", inputLimit) + "cd"; string(b) != want || err != nil {
			t.Errorf("got %d bytes, %v, want %d", len(b), err, len(want))
		}
		in.closeInput()
		if err := in.putMessage(t.Context(), 5, message{}); !errors.Is(err, errInputClosed) {
			t.Errorf("put after the end: %v", err)
		}
	})
}
