package conversation

// A turnState is the state of a turn on the server that runs it.
type turnState int

const (
	turnStarting turnState = iota // the sandbox is being prepared; there is no agent yet
	turnAborting                  // cancelled before the agent was started
	turnRunning                   // the agent was started, and may have ended
	turnStopping                  // cancelled after the agent was started
	turnEnded                     // all work of the turn is done
)

// A turnChange changes the state of a turn.
type turnChange int

const (
	agentStarted turnChange = iota // turn.process is set
	cancelRequested
	workDone
)

// turnTransitions has the next state for each state and change. Other changes have no effect: a
// second request to cancel a turn, for example.
var turnTransitions = map[turnState]map[turnChange]turnState{
	turnStarting: {agentStarted: turnRunning, cancelRequested: turnAborting, workDone: turnEnded},
	turnAborting: {agentStarted: turnStopping, workDone: turnEnded},
	turnRunning:  {cancelRequested: turnStopping, workDone: turnEnded},
	turnStopping: {workDone: turnEnded},
}

// hasAgent reports whether the agent was started, in a turn that has not ended.
func (s turnState) hasAgent() bool { return s == turnRunning || s == turnStopping }

// isCancelled reports whether a client cancelled the turn before its end.
func (s turnState) isCancelled() bool { return s == turnAborting || s == turnStopping }

// changeState applies a change, and returns the new state. It returns false if the change has no
// effect.
func (t *turn) changeState(change turnChange) (turnState, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, ok := turnTransitions[t.state][change]
	if ok {
		t.state = next
	}
	return t.state, ok
}

// currentState returns the state of the turn.
func (t *turn) currentState() turnState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state
}
