package conversation

import "testing"

func TestTurnTransitions(t *testing.T) {
	type step struct {
		change turnChange
		want   turnState
		ok     bool
	}
	for name, steps := range map[string][]step{
		"normal":                 {{agentStarted, turnRunning, true}, {workDone, turnEnded, true}},
		"failed start":           {{workDone, turnEnded, true}, {cancelRequested, turnEnded, false}},
		"cancelled before start": {{cancelRequested, turnAborting, true}, {cancelRequested, turnAborting, false}, {workDone, turnEnded, true}},
		"cancelled during start": {{cancelRequested, turnAborting, true}, {agentStarted, turnStopping, true}, {workDone, turnEnded, true}},
		"cancelled twice":        {{agentStarted, turnRunning, true}, {cancelRequested, turnStopping, true}, {cancelRequested, turnStopping, false}},
		"cancelled too late":     {{agentStarted, turnRunning, true}, {workDone, turnEnded, true}, {cancelRequested, turnEnded, false}},
	} {
		turn := &turn{}
		for i, s := range steps {
			if got, ok := turn.changeState(s.change); got != s.want || ok != s.ok {
				t.Errorf("%s: step %d leads to state %d, %t; want %d, %t", name, i, got, ok, s.want, s.ok)
			}
		}
	}
}
