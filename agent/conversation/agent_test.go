package conversation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/output"
)

// keys are the keys of what an agent says whose output is read in pieces, from an offset.
func keys(t *testing.T, printed string, from, piece int) map[string]string {
	t.Helper()
	parser, err := output.New("claude")
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{turn: &turn{id: "turn", ctx: t.Context(), stream: newStream("turn")}, parser: parser, messages: make(chan said, 1000)}
	if from > 0 {
		k.offset, k.torn = int64(from), true // as gap leaves it
	}
	for rest := printed[from:]; rest != ""; rest = rest[min(piece, len(rest)):] {
		if n, err := k.Write([]byte(rest[:min(piece, len(rest))])); err != nil || n != min(piece, len(rest)) {
			t.Fatal(n, err)
		}
	}
	k.finish(atoll.Exit{}, nil)
	close(k.messages)
	all := map[string]string{}
	for m := range k.messages {
		if was, ok := all[m.at]; ok {
			t.Errorf("%q and %q have one key", was, m.message.Body)
		}
		all[m.at] = m.message.Body
	}
	return all
}

// The keys of messages are the same for a program that takes a turn over, however it
// reads, and when the oldest output is gone.
func TestMessageKeys(t *testing.T) {
	var out strings.Builder
	for i := range 20 {
		fmt.Fprintf(&out, `{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m%d","role":"assistant","content":[{"type":"text","text":"text %d"}]}}`+"\n", i, i)
	}
	printed := out.String()
	want := keys(t, printed, 0, len(printed))
	if len(want) != 20 {
		t.Fatalf("there are %d messages: %v", len(want), want)
	}
	if got := keys(t, printed, 0, 7); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in small pieces: %v, want %v", got, want)
	}
	got := keys(t, printed, len(printed)/2+10, 100)
	for at, text := range got {
		if want[at] != text {
			t.Errorf("%q has the key %s, which is that of %q", text, at, want[at])
		}
	}
	if len(got) < 8 {
		t.Errorf("of half of the output there are %d messages: %v", len(got), got)
	}
}
