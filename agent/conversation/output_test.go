package conversation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/output"
)

// readMessageKeys returns the messages in an agent's output by their positions. The output is
// read from an offset, in pieces.
func readMessageKeys(t *testing.T, printed string, from, piece int) map[string]string {
	t.Helper()
	parser, err := output.New("claude")
	if err != nil {
		t.Fatal(err)
	}
	k := &outputReader{turn: &turn{id: "turn", ctx: t.Context(), stream: newStream("turn")}, parser: parser, messages: make(chan printedMessage, 1000)}
	if from > 0 {
		k.offset, k.partial = int64(from), true // as after recordGap
	}
	for rest := printed[from:]; rest != ""; rest = rest[min(piece, len(rest)):] {
		if n, err := k.Write([]byte(rest[:min(piece, len(rest))])); err != nil || n != min(piece, len(rest)) {
			t.Fatal(n, err)
		}
	}
	k.finishOutput(atoll.Exit{}, nil)
	close(k.messages)
	all := map[string]string{}
	for m := range k.messages {
		if was, ok := all[m.position]; ok {
			t.Errorf("%q and %q have the same key", was, m.message.Body)
		}
		all[m.position] = m.message.Body
	}
	return all
}

// Messages have the same keys for a program that takes the turn over, whatever the size of its
// reads, and if it does not get the oldest output.
func TestMessageKeys(t *testing.T) {
	var out strings.Builder
	for i := range 20 {
		fmt.Fprintf(&out, `{"type":"assistant","parent_tool_use_id":null,"message":{"id":"m%d","role":"assistant","content":[{"type":"text","text":"text %d"}]}}`+"\n", i, i)
	}
	printed := out.String()
	want := readMessageKeys(t, printed, 0, len(printed))
	if len(want) != 20 {
		t.Fatalf("there are %d messages: %v", len(want), want)
	}
	if got := readMessageKeys(t, printed, 0, 7); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("read in small pieces: %v, want %v", got, want)
	}
	got := readMessageKeys(t, printed, len(printed)/2+10, 100)
	for at, text := range got {
		if want[at] != text {
			t.Errorf("%q has the key %s of %q", text, at, want[at])
		}
	}
	if len(got) < 8 {
		t.Errorf("half of the output has %d messages: %v", len(got), got)
	}
}
