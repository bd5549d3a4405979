package output

import "github.com/seed46cd37a8/atoll"

// text passes on the output of any program.
type text struct{ run }

func newText() *text { return &text{} }

// Line implements Parser.
func (t *text) Line(line []byte) Step {
	if t.ended {
		return Step{}
	}
	t.emitLine(line, false)
	return t.takeStep()
}

// End implements Parser.
func (t *text) End(exit atoll.Exit, stderr string, err error) Step {
	t.reason = FinishStop // its exit alone tells whether it failed
	return t.finishRun(exit, stderr, err)
}

var _ Parser = (*text)(nil)
