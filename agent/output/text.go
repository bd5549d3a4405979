package output

import "github.com/seed46cd37a8/atoll"

// text reads what any program prints.
type text struct{ run }

func newText() *text { return &text{} }

// Line implements Parser.
func (t *text) Line(line []byte) Step {
	if t.ended {
		return Step{}
	}
	t.line(line, false)
	return t.take()
}

// End implements Parser.
func (t *text) End(exit atoll.Exit, stderr string, err error) Step {
	t.reason = FinishStop // it says nothing but its exit
	return t.end(exit, stderr, err)
}

var _ Parser = (*text)(nil)
