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
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

func agentSandboxRoutes(after, limit Param) []Route {
	source := Param{Name: "source", Type: "string", Doc: "`volume` for the sandbox itself (the default) or `s3` for the latest version in object storage"}
	dir := Param{Name: "path", Type: "string", Doc: "a directory, relative to the synced directory"}
	page := Param{Name: "page", Type: "integer", Doc: "the page number, from 1"}
	perPage := Param{Name: "per_page", Type: "integer", Doc: "files per page, 1 to 1000; default 100"}
	recursive := Param{Name: "recursive", Type: "boolean", Doc: "include subdirectories; default true"}
	claude := Route{
		Method: "POST", Path: "/sandbox/{sandboxId}/claude", Name: "sendRawPrompt", Tag: "agents", Summary: "Send a prompt and stream the agent's output",
		Doc:  "Each event is one raw line of the agent's output; the last event is `[DONE]`. The prompt goes to the sandbox's conversation, or to a conversation with the id of the sandbox. `/sandboxes/{sandboxId}/claude` is an alias.",
		Body: jsonOf[promptBody](), Reply: Content{Media: wire.MediaSSE}, serve: withConversations((*Handler).serveSendRaw),
	}
	legacy := claude
	legacy.Path, legacy.Name = "/sandboxes/{sandboxId}/claude", "sendRawOld"
	return []Route{
		claude, legacy,
		{
			Method: "GET", Path: "/sandbox", Name: "listAgentSandboxes", Tag: "agents", Summary: "List the account's template sandboxes, sorted by id",
			Params: []Param{after, limit}, Reply: jsonOf[agentSandboxesReply](), serve: withConversations((*Handler).serveAgentSandboxes),
		},
		{
			Method: "POST", Path: "/sandbox", Name: "createAgentSandbox", Tag: "agents", Summary: "Create a sandbox from a template",
			Body: jsonOf[agentSandboxBody](), Status: http.StatusCreated, Reply: jsonOf[agent.Sandbox](), serve: withConversations((*Handler).serveCreateAgentSandbox),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}", Name: "getAgentSandbox", Tag: "agents", Summary: "Get a template sandbox",
			Reply: jsonOf[agent.Sandbox](), serve: withConversations((*Handler).serveAgentSandbox),
		},
		{
			Method: "DELETE", Path: "/sandbox/{sandboxId}", Name: "deleteAgentSandbox", Tag: "agents", Summary: "Push the files of a sandbox to object storage and remove it",
			Doc:    "The server retains the record of the sandbox; the next prompt to its conversation creates it again. " + deletionDoc,
			Params: []Param{forceParam()}, Reply: jsonOf[agent.Deletion](), serve: withConversations((*Handler).serveDeleteAgentSandbox),
		},
		{
			Method: "POST", Path: "/sandbox/{sandboxId}/sync", Name: "syncAgentSandbox", Tag: "agents", Summary: "Push the files of a sandbox to object storage",
			Reply: jsonOf[agent.SyncStats](), serve: withConversations((*Handler).serveSyncAgentSandbox),
		},
		{
			Method: "POST", Path: "/sandbox/{sandboxId}/restore", Name: "restoreAgentSandbox", Tag: "agents", Summary: "Restore the files of a sandbox from a version",
			Doc:  "The server first pushes the current files. The default version is the latest.",
			Body: jsonOf[restoreBody](), Reply: jsonOf[agent.SyncStats](), serve: withConversations((*Handler).serveRestoreAgentSandbox),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/versions", Name: "listAgentSandboxVersions", Tag: "agents", Summary: "List the versions of a sandbox's files, the oldest first",
			Reply: jsonOf[versionsReply](), serve: withConversations((*Handler).serveVersions),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files", Name: "listAgentFiles", Tag: "agents", Summary: "List files, page by page",
			Params: []Param{source, dir, recursive, page, perPage}, Reply: jsonOf[agent.FilePage](), serve: withConversations((*Handler).serveAgentFiles),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files/content", Name: "readAgentFile", Tag: "agents", Summary: "Read a file of up to 100 MiB",
			Params: []Param{source, {Name: "file_path", Type: "string", Doc: "relative to the synced directory", Required: true}},
			Reply:  Content{Media: wire.MediaBytes}, serve: withConversations((*Handler).serveAgentFile),
		},
		{
			Method: "GET", Path: "/sandbox/{sandboxId}/files/tree", Name: "getAgentFileTree", Tag: "agents", Summary: "Get all files as a tree",
			Params: []Param{source, dir}, Reply: jsonOf[agent.File](), serve: withConversations((*Handler).serveAgentTree),
		},
	}
}

// An agentSandboxesReply lists the sandboxes of agents.
type agentSandboxesReply struct {
	Sandboxes []agent.Sandbox `json:"sandboxes"` // newest first
}

// An agentSandboxBody describes the sandbox to create.
type agentSandboxBody struct {
	ID           string       `json:"id,omitempty"`           // a UUID or a name; generated if empty
	Agent        string       `json:"agent_id,omitempty"`     // the name of the agent
	Organization string       `json:"organization,omitempty"` // the organization of the user
	Provider     providerName `json:"provider,omitempty"`     // the template of the agent, such as claude-code
}

// A restoreBody selects a version of files.
type restoreBody struct {
	Version int64 `json:"version,omitempty"` // the number of the version to restore
}

// A versionsReply lists versions of files.
type versionsReply struct {
	Versions []agent.SandboxVersion `json:"versions"` // newest first
}

func (h *Handler) serveSendRaw(c Conversations, w http.ResponseWriter, r *http.Request) error {
	var body promptBody
	if err := h.decodeBody(w, r, &body, true); err != nil {
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
	return h.serveTurn(c, w, r, p, sendRawTurn)
}

func (h *Handler) serveAgentSandboxes(c Conversations, w http.ResponseWriter, r *http.Request) error {
	after, limit, err := parseListParams(r, "after")
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
	if err := h.decodeBody(w, r, &body, false); err != nil {
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
	q := parseQuery(r)
	o := agent.DeleteOptions{Force: q.getBool("force")}
	if q.err != nil {
		return q.err
	}
	done, err := c.DeleteSandbox(r.Context(), r.PathValue("sandboxId"), o)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, done)
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
	if err := h.decodeBody(w, r, &body, false); err != nil {
		return err
	}
	if body.Version < 0 {
		return invalidError("version: must not be negative")
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

// getPage returns a page number or page size, or fallback if the parameter is missing or not a
// number.
func (q *queryParams) getPage(name string, fallback int) int {
	n, err := strconv.Atoi(q.getString(name))
	if err != nil {
		return fallback
	}
	return n
}

func (h *Handler) serveAgentFiles(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	ask := agent.FileQuery{
		Source: q.getString("source"), Path: q.getString("path"), Flat: q.values.Has("recursive") && !q.getBool("recursive"), Page: q.getPage("page", 1), PerPage: q.getPage("per_page", 100),
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
	q := parseQuery(r)
	tree, err := c.FileTree(r.Context(), r.PathValue("sandboxId"), q.getString("source"), q.getString("path"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, tree)
	return nil
}

func (h *Handler) serveAgentFile(c Conversations, w http.ResponseWriter, r *http.Request) error {
	q := parseQuery(r)
	body, file, err := c.FileContent(r.Context(), r.PathValue("sandboxId"), q.getString("source"), q.getString("file_path"))
	if err != nil {
		return err
	}
	defer body.Close()
	header := w.Header()
	header.Set("Content-Type", cmp.Or(mime.TypeByExtension(path.Ext(file.Name)), wire.MediaBytes))
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": file.Name}))
	header.Set("Content-Security-Policy", "sandbox") // a page that an agent wrote must not run on this origin
	header.Set("Content-Length", strconv.FormatInt(file.Size, 10))
	if _, err := copyBody(w, io.LimitReader(body, file.Size)); err != nil {
		return h.abortResponse(r, err)
	}
	return nil
}
