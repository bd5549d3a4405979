package supervised

import (
	"errors"
	"io/fs"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// endedProcess returns the ended process with that id; nil unless it is the main process of
// a sandbox that has ended.
func (s *sandbox) endedProcess(id string) atoll.Process {
	if id != atoll.MainProcess {
		return nil
	}
	p, _ := s.endedMain()
	return p
}

// endedMain returns the main process of an ended sandbox, as its supervisor saved it; nil
// if it saved none, or if the sandbox runs. The record decides that, because a lingering
// supervisor still answers for a while.
func (s *sandbox) endedMain() (atoll.Process, atoll.ProcessStatus) {
	rec, err := s.p.readRecord("process", s.id)
	if err != nil || isLive(rec.Status.State) {
		return nil, atoll.ProcessStatus{}
	}
	p, st, err := supervisor.LoadMain(s.p.dir.Sandbox(s.id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.p.log.Warn("cannot read the saved main process", "sandbox", s.id, "err", err)
	}
	return p, st
}
