package api

import (
	"cmp"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

func agentSandboxRoutes(after, limit Param) []Route {
	source := Param{Name: "source", Type: "string", Doc: "`volume`, the sandbox itself, or `s3`, the latest version in object storage; the sandbox if it is not given"}
	dir := Param{Name: "path", Type: "string", Doc: "of a directory, relative to the one that is synced"}
	page := Param{Name: "page", Type: "integer", Doc: "from 1"}
	perPage := Param{Name: "per_page", Type: "integer", Doc: "1 to 1000; 100 if it is not given"}
	recursive := Param{Name: "recursive", Type: "boolean", Doc: "also what is in directories below; true if it is not given"}
	claude := Route{
		Method: "POST", Path: "/sandbox/{sandboxId}/claude", Name: "sendRaw", Tag: "agents", Summary: "Send a prompt, and follow what the agent prints",
		Doc:  "The events are the lines of the agent as they are, and at the end `[DONE]`. The conversation is the sandbox's, or one of its id. `/sandboxes/{sandboxId}/claude` is the same.",
		Body: jsonOf[promptBody](), Reply: Content{Media: mediaSSE}, serve: conversing((*Handler).serveSendRaw),
	}
	legacy := claude
	legacy.Path, legacy.Name = "/sandboxes/{sandboxId}/claude", "sendRawOld"
	return []Route{
		claude, legacy,
		{
			Method: "GET", Path: "/sandbox", Name: "listAgentSandboxes", Tag: "agents", Summary: "List the account's sandboxes that have a template, by id",
			Params: []Param{after, limit}, Reply: jsonOf[agentSandboxesReply](), serve: conversing((*Handler).serveAgentSandboxes),
		},
		{
			Method: "POST", Path: "/sandbox", Name: "createAgentSandbox", Tag: "agents", Summary: "Make a sandbox from a template",
			Body: jsonOf[agentSandboxBody](), Status: http.StatusCreated, Reply: jsonOf[agent.Sandbox](), serve: conversing((*Handler).serveCreateAgentSandbox),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}", Name: "getAgentSandbox", Tag: "agents", Summary: "Describe a sandbox that has a template",
			Reply: jsonOf[agent.Sandbox](), serve: conversing((*Handler).serveAgentSandbox),
		},
		{
			Method: "DELETE", Path: "/sandbox/{sandboxId}", Name: "deleteAgentSandbox", Tag: "agents", Summary: "Push what is in a sandbox, and remove it",
			Doc: "What is known of it stays, and the next prompt to its conversation makes it again.", Status: http.StatusNoContent, serve: conversing((*Handler).serveDeleteAgentSandbox),
		},
		{
			Method: "POST", Path: "/sandbox/{sandboxId}/sync", Name: "syncAgentSandbox", Tag: "agents", Summary: "Push what is in a sandbox to object storage",
			Reply: jsonOf[agent.SyncStats](), serve: conversing((*Handler).serveSyncAgentSandbox),
		},
		{
			Method: "POST", Path: "/sandbox/{sandboxId}/restore", Name: "restoreAgentSandbox", Tag: "agents", Summary: "Bring a sandbox to what a version held",
			Doc:  "What is in it is pushed before. Without a version it is brought to the latest one.",
			Body: jsonOf[restoreBody](), Reply: jsonOf[agent.SyncStats](), serve: conversing((*Handler).serveRestoreAgentSandbox),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/versions", Name: "listAgentSandboxVersions", Tag: "agents", Summary: "List the versions of a sandbox's files, the oldest first",
			Reply: jsonOf[versionsReply](), serve: conversing((*Handler).serveVersions),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files", Name: "listAgentFiles", Tag: "agents", Summary: "List files, by pages",
			Params: []Param{source, dir, recursive, page, perPage}, Reply: jsonOf[agent.FilePage](), serve: conversing((*Handler).serveAgentFiles),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files/content", Name: "readAgentFile", Tag: "agents", Summary: "Read a file of up to 100 MiB",
			Params: []Param{source, {Name: "file_path", Type: "string", Doc: "relative to the directory that is synced", Required: true}},
			Reply:  Content{Media: mediaBytes}, serve: conversing((*Handler).serveAgentFile),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files/tree", Name: "treeOfAgentFiles", Tag: "agents", Summary: "All files as a tree",
			Params: []Param{source, dir}, Reply: jsonOf[agent.File](), serve: conversing((*Handler).serveAgentTree),
		},
	}
}

type agentSandboxesReply struct {
	Sandboxes []agent.Sandbox `json:"sandboxes"`
}

// An agentSandboxBody says what sandbox is wanted.
type agentSandboxBody struct {
	ID           string       `json:"id,omitempty"` // a UUID or a name; drawn if it is empty
	Agent        string       `json:"agent_id,omitempty"`
	Organization string       `json:"organization,omitempty"`
	Provider     providerName `json:"provider,omitempty"`
}

type restoreBody struct {
	Version int64 `json:"version,omitempty"`
}

type versionsReply struct {
	Versions []agent.SandboxVersion `json:"versions"`
}

func (h *Handler) serveSendRaw(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body promptBody
	if err := h.body(w, r, &body, true); err != nil {
		return err
	}
	sid := r.PathValue("sandboxId")
	p := agent.Prompt{
		Conversation: sid, Sandbox: sid, Agent: body.Agent, Organization: body.Organization, Template: string(body.Provider), Text: body.Prompt, Raw: true,
	}
	known, err := c.Sandbox(r.Context(), sid)
	switch {
	case err == nil:
		p.Conversation = cmp.Or(known.Conversation, p.Conversation)
	case atoll.KindOf(err) != atoll.ErrNotExist:
		return err
	}
	return h.converse(c, w, r, p)
}

func (h *Handler) serveAgentSandboxes(c Conversations, w http.ResponseWriter, r *http.Request) error {
	after, limit, err := listed(r, "after")
	if err != nil {
		return err
	}
	all, err := c.Sandboxes(r.Context(), after, limit)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, agentSandboxesReply{all})
	return nil
}

func (h *Handler) serveCreateAgentSandbox(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body agentSandboxBody
	if err := h.body(w, r, &body, false); err != nil {
		return err
	}
	made, err := c.CreateSandbox(r.Context(), agent.Sandbox{ID: body.ID, Agent: body.Agent, Organization: body.Organization, Template: string(body.Provider)})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, made)
	return nil
}

func (h *Handler) serveAgentSandbox(c Conversations, w http.ResponseWriter, r *http.Request) error {
	one, err := c.Sandbox(r.Context(), r.PathValue("sandboxId"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, one)
	return nil
}

func (h *Handler) serveDeleteAgentSandbox(c Conversations, w http.ResponseWriter, r *http.Request) error {
	if err := c.DeleteSandbox(r.Context(), r.PathValue("sandboxId")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) serveSyncAgentSandbox(c Conversations, w http.ResponseWriter, r *http.Request) error {
	stats, err := c.SyncSandbox(r.Context(), r.PathValue("sandboxId"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, stats)
	return nil
}

func (h *Handler) serveRestoreAgentSandbox(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body restoreBody
	if err := h.body(w, r, &body, false); err != nil {
		return err
	}
	if body.Version < 0 {
		return invalid("version: must not be negative")
	}
	stats, err := c.RestoreSandbox(r.Context(), r.PathValue("sandboxId"), body.Version)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, stats)
	return nil
}

func (h *Handler) serveVersions(c Conversations, w http.ResponseWriter, r *http.Request) error {
	all, err := c.Versions(r.Context(), r.PathValue("sandboxId"))
	if err != nil {
		return err
	}
	if all == nil {
		all = []agent.SandboxVersion{}
	}
	writeJSON(w, http.StatusOK, versionsReply{all})
	return nil
}

// pageOf reads the number of a page, or how long it is: what is no number is not there.
func (q *query) pageOf(name string, otherwise int) int {
	n, err := strconv.Atoi(q.str(name))
	if err != nil {
		return otherwise
	}
	return n
}

func (h *Handler) serveAgentFiles(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	ask := agent.FileQuery{
		Source: q.str("source"), Path: q.str("path"), Flat: q.values.Has("recursive") && !q.bool("recursive"), Page: q.pageOf("page", 1), PerPage: q.pageOf("per_page", 100),
	}
	if q.err != nil {
		return q.err
	}
	page, err := c.Files(r.Context(), r.PathValue("sandboxId"), ask)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

func (h *Handler) serveAgentTree(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	tree, err := c.FileTree(r.Context(), r.PathValue("sandboxId"), q.str("source"), q.str("path"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, tree)
	return nil
}

func (h *Handler) serveAgentFile(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r)
	body, file, err := c.FileContent(r.Context(), r.PathValue("sandboxId"), q.str("source"), q.str("file_path"))
	if err != nil {
		return err
	}
	defer body.Close()
	header := w.Header()
	header.Set("Content-Type", cmp.Or(mime.TypeByExtension(path.Ext(file.Name)), mediaBytes))
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": file.Name}))
	header.Set("Content-Security-Policy", "sandbox") // what an agent wrote is nobody's page
	header.Set("Content-Length", strconv.FormatInt(file.Size, 10))
	if _, err := copyBody(w, io.LimitReader(body, file.Size)); err != nil {
		return h.abort(r, err)
	}
	return nil
}
