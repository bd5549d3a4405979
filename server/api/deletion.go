package api

import (
	"cmp"
	"net/http"

	"github.com/seed46cd37a8/atoll/agent"
)

// deletionDoc describes the failures of a deletion.
const deletionDoc = "If the files cannot be pushed, the server deletes nothing and says why; with `force=true` it removes the sandbox nevertheless, and keeps its data volume. " +
	"`warnings` in the response has what failed, such as a hook `OnTerminate`, although the deletion is done: do not repeat it."

func forceParam() Param {
	return Param{Name: "force", Type: "boolean", Doc: "delete even if the files cannot be pushed"}
}

func (h *Handler) serveDeleteConversation(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	o := agent.DeleteOptions{Sandbox: q.getFate(), Force: q.getBool("force")}
	if q.err != nil {
		return q.err
	}
	done, err := c.DeleteConversation(r.Context(), r.PathValue("conversationId"), o)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// getFate returns the parameter sandbox, or its value for the older parameter terminate.
func (q *queryParams) getFate() agent.SandboxFate {
	fate, older := agent.SandboxFate(q.getString("sandbox")), agent.SandboxFate("")
	if q.values.Has("sandbox") && fate != agent.SandboxKeep && fate != agent.SandboxRemove {
		q.setError(invalidError("parameter sandbox: %q is not %s or %s", fate, agent.SandboxKeep, agent.SandboxRemove))
	}
	if q.values.Has("terminate") {
		if older = agent.SandboxKeep; q.getBool("terminate") {
			older = agent.SandboxRemove
		}
	}
	if fate != "" && older != "" && fate != older {
		q.setError(invalidError("sandbox=%s and terminate=%s: give only one of them", fate, q.getString("terminate")))
	}
	return cmp.Or(fate, older)
}
