package supervised

import (
	"errors"
	"io/fs"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// endedProcess is endedMain for the process id, which may be another one.
func (s *sandbox) endedProcess(id string) atoll.Process {
	if id != atoll.MainProcess {
		return nil
	}
	p, _ := s.endedMain()
	return p
}

// endedMain is the main process of a sandbox that has come to its end, as its
// supervisor left it; nil if it left none, or if the sandbox runs. The record knows
// which: a supervisor that lingers answers until it does not.
func (s *sandbox) endedMain() (atoll.Process, atoll.ProcessStatus) {
	rec, err := s.p.readRecord("process", s.id)
	if err != nil || isLive(rec.Status.State) {
		return nil, atoll.ProcessStatus{}
	}
	p, st, err := supervisor.LoadMain(s.p.dir.Sandbox(s.id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.p.log.Warn("main process", "sandbox", s.id, "err", err) // it is lost
	}
	return p, st
}
