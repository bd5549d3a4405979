package fakemodal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// An ending is why a sandbox is ended, and what its result will say.
type ending struct {
	status    pb.GenericResult_GenericStatus
	exception string
}

func (e ending) Error() string { return e.status.String() + ": " + e.exception }

func (e ending) endResult() *pb.GenericResult {
	return pb.GenericResult_builder{Status: e.status, Exception: e.exception}.Build()
}

// resultOf is the result of a sandbox that did not start, or was ended, because of err.
func (sb *sandbox) resultOf(err error) *pb.GenericResult {
	if sb.ctx.Err() == nil {
		return failureResult(pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, err)
	}
	if e, ok := errors.AsType[ending](context.Cause(sb.ctx)); ok {
		return e.endResult()
	}
	return failureResult(pb.GenericResult_GENERIC_STATUS_TERMINATED, errClosed)
}

// runLife is the life of a sandbox.
func (sb *sandbox) runLife() {
	result := sb.startAndEnd()
	sb.goes()
	sb.stdin.close()
	sb.stdout.close()
	sb.stderr.close()
	sb.s.mu.Lock()
	sb.finished, sb.result = sb.s.nextTime(), result
	sb.s.forgetExecs(sb)
	sb.s.mu.Unlock()
	sb.cancel(nil)
	close(sb.ended)
}

// startAndEnd returns when nothing of the sandbox is left.
func (sb *sandbox) startAndEnd() *pb.GenericResult {
	box, err := sb.s.makeBox(sb.ctx, sb.boxSpec(), sb, sb.image.work)
	if err != nil {
		return sb.resultOf(err)
	}
	var main atoll.Process
	defer func() {
		sb.s.removeBox(box)
		drainOutput(main)
	}()
	if main, err = sb.startMain(box); err != nil {
		return sb.resultOf(err)
	}
	tunnels, err := sb.openTunnels(box)
	if err != nil {
		return sb.resultOf(err)
	}
	sb.s.mu.Lock()
	sb.box, sb.tunnels, sb.started = box, tunnels, sb.s.nextTime()
	sb.s.mu.Unlock()
	close(sb.running)
	defer sb.stopRest()
	return sb.untilEnd(main)
}

// drainOutput waits until all has been delivered that a process has printed before it was
// killed.
func drainOutput(main atoll.Process) {
	if main == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	_, _ = main.Wait(ctx) // it says that it is gone
}

// drainTime is how long that may take.
var drainTime = testenv.Scale(5 * time.Second)

// stopRest ends what belongs to a sandbox that runs.
func (sb *sandbox) stopRest() {
	sb.s.mu.Lock()
	tunnels := sb.tunnels
	sb.box, sb.tunnels = nil, nil
	sb.s.muteExecs(sb)
	sb.s.mu.Unlock()
	for _, t := range tunnels {
		t.close()
	}
	sb.stdout.muteWriters()
	sb.stderr.muteWriters()
}

// untilEnd waits until the main process has ended, if there is one, or a limit is
// reached, or somebody ends the sandbox.
func (sb *sandbox) untilEnd(main atoll.Process) *pb.GenericResult {
	limit := sb.timeLimit()
	timer := time.AfterFunc(limit, func() {
		sb.cancel(ending{pb.GenericResult_GENERIC_STATUS_TIMEOUT, fmt.Sprintf("Sandbox has reached its timeout of %s", limit)})
	})
	defer timer.Stop()
	if sb.def.HasIdleTimeoutSecs() && sb.def.GetIdleTimeoutSecs() > 0 {
		idle := time.Duration(sb.def.GetIdleTimeoutSecs()) * time.Second
		sb.s.tasks.Go(func() {
			if sb.use.waitIdle(sb.ctx, idle) {
				sb.cancel(ending{pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, fmt.Sprintf("Sandbox was idle for %s", idle)})
			}
		})
	}
	if main == nil {
		<-sb.ctx.Done()
		return sb.resultOf(nil)
	}
	exit, err := main.Wait(sb.ctx)
	switch {
	case sb.ctx.Err() != nil:
		return sb.resultOf(nil)
	case err != nil:
		return lostEnding(err).endResult()
	}
	return exitResult(exit)
}

// lostEnding is how a sandbox ends whose box has gone.
func lostEnding(err error) ending {
	return ending{pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "Sandbox was lost: " + err.Error()}
}

func exitResult(exit atoll.Exit) *pb.GenericResult {
	if exit.Success() {
		return successResult()
	}
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_FAILURE, Exitcode: int32(exit.Code)}.Build()
}

func (sb *sandbox) timeLimit() time.Duration {
	if secs := sb.def.GetTimeoutSecs(); secs > 0 {
		return time.Duration(secs) * time.Second
	}
	return defaultTimeoutSecs * time.Second
}

// boxSpec is what the backend is asked for. Its user is root, who reads all files; whom
// processes belong to they are told themselves. They are also told where they start:
// backends refuse the root directory.
func (sb *sandbox) boxSpec() *atoll.Spec {
	r := sb.def.GetResources()
	spec := &atoll.Spec{
		Image: sb.s.registry.imageRef(sb.image.id), User: "0:0", IdleStop: atoll.Never, Mounts: sb.mounts, Network: sb.networkSpec(),
		Labels: map[string]string{"sandbox": sb.id},
		Env:    append([]string{"MODAL_SANDBOX_ID=" + sb.id, "MODAL_TASK_ID=" + sb.taskID, "MODAL_IS_REMOTE=1"}, sb.env...),
		Resources: atoll.Resources{
			CPUs: float64(r.GetMilliCpuMax()) / 1000, Memory: atoll.Bytes(r.GetMemoryMbMax()) << 20, Disk: atoll.Bytes(r.GetEphemeralDiskMb()) << 20,
		},
	}
	if dir := path.Clean(sb.workDir()); dir != "/" {
		spec.Workdir = dir
	}
	return spec
}

// workDir is where processes start.
func (sb *sandbox) workDir() string {
	return cmp.Or(sb.def.GetWorkdir(), sb.image.config.WorkingDir, "/")
}

// processUser is whom processes belong to.
func (sb *sandbox) processUser() string {
	return cmp.Or(sb.image.config.User, "0:0")
}

func (sb *sandbox) networkSpec() atoll.Network {
	n := sb.def.GetNetworkAccess()
	switch {
	case sb.def.GetBlockNetwork(), n.GetNetworkAccessType() == pb.NetworkAccess_BLOCKED:
		return atoll.Network{Mode: atoll.NetworkNone}
	case n.GetNetworkAccessType() == pb.NetworkAccess_ALLOWLIST:
		return atoll.Network{Mode: atoll.NetworkEgress, Allow: n.GetAllowedCidrs()}
	}
	return atoll.Network{Mode: atoll.NetworkOn}
}

// startMain starts the process whose end is that of the sandbox; nil if there is none.
func (sb *sandbox) startMain(box atoll.Sandbox) (atoll.Process, error) {
	if len(sb.def.GetEntrypointArgs()) == 0 {
		return nil, nil
	}
	cmd := &atoll.Command{
		Args: sb.def.GetEntrypointArgs(), Dir: sb.workDir(), User: sb.processUser(),
		Stdin: sb.stdin, Stdout: sb.stdout, Stderr: sb.stderr,
	}
	setTerminal(cmd, sb.def.GetPtyInfo())
	return box.Exec(sb.ctx, cmd)
}

// setTerminal gives a command the terminal that is asked for.
func setTerminal(cmd *atoll.Command, info *pb.PTYInfo) {
	if !info.GetEnabled() {
		return
	}
	cmd.TTY = &atoll.Size{Rows: uint16(info.GetWinszRows()), Cols: uint16(info.GetWinszCols())}
	for key, value := range map[string]string{"TERM": info.GetEnvTerm(), "COLORTERM": info.GetEnvColorterm(), "TERM_PROGRAM": info.GetEnvTermProgram()} {
		if value != "" {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
	}
}

// watchBoxes ends sandboxes whose boxes have gone by themselves.
func (s *Server) watchBoxes() {
	for s.ctx.Err() == nil {
		for event, err := range s.opts.Backend.Watch(s.ctx) {
			if err != nil {
				break
			}
			s.handleEvent(event)
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(100 * time.Millisecond): // it was too slow, or the backend is closed
		}
	}
}

func (s *Server) handleEvent(event atoll.Event) {
	if event.Type != atoll.EventState {
		return
	}
	switch event.Status.State {
	case atoll.StateStopped, atoll.StateFailed, atoll.StateRemoved:
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.boxes[event.Status.ID]; sb != nil && sb.box != nil {
		sb.cancel(lostEnding(errors.New(string(event.Status.State) + " " + strconv.Quote(event.Status.Reason))))
	}
}
