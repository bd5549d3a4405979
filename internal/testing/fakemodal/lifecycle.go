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

// An endCause is the reason why a sandbox was ended, for its result.
type endCause struct {
	status    pb.GenericResult_GenericStatus
	exception string
}

func (e endCause) Error() string { return e.status.String() + ": " + e.exception }

func (e endCause) toResult() *pb.GenericResult {
	return pb.GenericResult_builder{Status: e.status, Exception: e.exception}.Build()
}

// resultFor returns the result of a sandbox that failed to start with err, or was ended.
func (sb *sandbox) resultFor(err error) *pb.GenericResult {
	if sb.ctx.Err() == nil {
		return failureResult(pb.GenericResult_GENERIC_STATUS_INIT_FAILURE, err)
	}
	if e, ok := errors.AsType[endCause](context.Cause(sb.ctx)); ok {
		return e.toResult()
	}
	return failureResult(pb.GenericResult_GENERIC_STATUS_TERMINATED, errClosed)
}

// runSandbox runs a sandbox from its start to its removal.
func (sb *sandbox) runSandbox() {
	result := sb.runAndRemove()
	sb.markStopped()
	sb.stdin.closeInput()
	sb.stdout.closeLogs()
	sb.stderr.closeLogs()
	sb.s.mu.Lock()
	sb.finished, sb.result = sb.s.nextTime(), result
	sb.s.deleteExecs(sb)
	sb.s.mu.Unlock()
	sb.cancel(nil)
	close(sb.ended)
}

// runAndRemove creates the sandbox of the backend, waits until it ends and removes it.
func (sb *sandbox) runAndRemove() *pb.GenericResult {
	inner, err := sb.s.createInner(sb.ctx, sb.innerSpec(), sb, sb.image.work)
	if err != nil {
		return sb.resultFor(err)
	}
	var main atoll.Process
	defer func() {
		sb.s.removeInner(inner)
		drainOutput(main)
	}()
	if main, err = sb.startMain(inner); err != nil {
		return sb.resultFor(err)
	}
	tunnels, err := sb.openTunnels(inner)
	if err != nil {
		return sb.resultFor(err)
	}
	sb.s.mu.Lock()
	sb.inner, sb.tunnels, sb.started = inner, tunnels, sb.s.nextTime()
	sb.s.mu.Unlock()
	close(sb.running)
	defer sb.stopTasks()
	return sb.awaitEnd(main)
}

// drainOutput waits until the output of a killed process has been delivered.
func drainOutput(main atoll.Process) {
	if main == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	_, _ = main.Wait(ctx) // the process is gone, so Wait fails
}

// drainTime limits the time that drainOutput waits.
var drainTime = testenv.Scale(5 * time.Second)

// stopTasks closes the tunnels of a sandbox and unblocks its commands.
func (sb *sandbox) stopTasks() {
	sb.s.mu.Lock()
	tunnels := sb.tunnels
	sb.inner, sb.tunnels = nil, nil
	sb.s.muteExecs(sb)
	sb.s.mu.Unlock()
	for _, t := range tunnels {
		t.closeTunnel()
	}
	sb.stdout.muteWriters()
	sb.stderr.muteWriters()
}

// awaitEnd waits until the main process ends, a time limit is reached or a caller ends the sandbox.
func (sb *sandbox) awaitEnd(main atoll.Process) *pb.GenericResult {
	limit := sb.timeLimit()
	timer := time.AfterFunc(limit, func() {
		sb.cancel(endCause{pb.GenericResult_GENERIC_STATUS_TIMEOUT, fmt.Sprintf("Sandbox has reached its timeout of %s", limit)})
	})
	defer timer.Stop()
	if sb.def.HasIdleTimeoutSecs() && sb.def.GetIdleTimeoutSecs() > 0 {
		idle := time.Duration(sb.def.GetIdleTimeoutSecs()) * time.Second
		sb.s.tasks.Go(func() {
			if sb.use.waitIdle(sb.ctx, idle) {
				sb.cancel(endCause{pb.GenericResult_GENERIC_STATUS_IDLE_TIMEOUT, fmt.Sprintf("Sandbox was idle for %s", idle)})
			}
		})
	}
	if main == nil {
		<-sb.ctx.Done()
		return sb.resultFor(nil)
	}
	exit, err := main.Wait(sb.ctx)
	switch {
	case sb.ctx.Err() != nil:
		return sb.resultFor(nil)
	case err != nil:
		return lostCause(err).toResult()
	}
	return resultOfExit(exit)
}

// lostCause returns the cause of a sandbox whose sandbox of the backend has gone.
func lostCause(err error) endCause {
	return endCause{pb.GenericResult_GENERIC_STATUS_INTERNAL_FAILURE, "Sandbox was lost: " + err.Error()}
}

func resultOfExit(exit atoll.Exit) *pb.GenericResult {
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

// innerSpec returns the spec of the backend's sandbox. Its user is root, so that the server can read all
// files. Each process gets its own user, and its directory, because backends do not accept the root
// directory as the work directory.
func (sb *sandbox) innerSpec() *atoll.Spec {
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

// workDir returns the directory in which processes start.
func (sb *sandbox) workDir() string {
	return cmp.Or(sb.def.GetWorkdir(), sb.image.config.WorkingDir, "/")
}

// processUser returns the user that processes run as.
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

// startMain starts the main process. It returns nil if the sandbox has none.
func (sb *sandbox) startMain(inner atoll.Sandbox) (atoll.Process, error) {
	if len(sb.def.GetEntrypointArgs()) == 0 {
		return nil, nil
	}
	cmd := &atoll.Command{
		Args: sb.def.GetEntrypointArgs(), Dir: sb.workDir(), User: sb.processUser(),
		Stdin: sb.stdin, Stdout: sb.stdout, Stderr: sb.stderr,
	}
	setTerminal(cmd, sb.def.GetPtyInfo())
	return inner.Exec(sb.ctx, cmd)
}

// setTerminal adds the requested terminal to a command.
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

// watchBackend ends sandboxes whose sandbox of the backend stops by itself.
func (s *Server) watchBackend() {
	for s.ctx.Err() == nil {
		for event, err := range s.opts.Backend.Watch(s.ctx) {
			if err != nil {
				break
			}
			s.handleEvent(event)
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(100 * time.Millisecond): // the watch was too slow, or the backend is closed
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
	if sb := s.byInnerID[event.Status.ID]; sb != nil && sb.inner != nil {
		sb.cancel(lostCause(errors.New(string(event.Status.State) + " " + strconv.Quote(event.Status.Reason))))
	}
}
