package server

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"

	"humanwork.internal/pkg/fileuri"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/entity"
	"humanwork.internal/services/gateway/internal/strictjson"
)

// Bodies of the maintenance routes.
var (
	checkBody    = []strictjson.Field{{Name: "repair", Kind: strictjson.Bool}}
	snapshotBody = []strictjson.Field{{Name: "name", Kind: strictjson.String}}
)

var snapshotPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// maxFilePageToken is what agentfs takes where a token holds a path.
const maxFilePageToken = 8192

// audit answers with records of agentfs. Positions are the ledger's.
func (s *Server) audit(token int, positions ...string) func(http.ResponseWriter, *edge.Request) error {
	return func(w http.ResponseWriter, r *edge.Request) error {
		if err := checkPage(r, token); err != nil {
			return err
		}
		for _, name := range positions {
			if !r.Query.Has(name) {
				continue
			}
			if _, err := strconv.ParseUint(r.Query.Get(name), 10, 63); err != nil {
				return edge.InvalidParameter(name, "must be a position of the ledger, or 0")
			}
		}
		if len(r.Query.Get("path")) > fileuri.MaxPath {
			return edge.InvalidParameter("path", "is longer than %d bytes", fileuri.MaxPath)
		}
		return s.proxied(nil)(w, r)
	}
}

// checkPage checks the parameters of a page of agentfs's.
func checkPage(r *edge.Request, token int) error {
	if _, err := pageSize(r, 1000); err != nil {
		return err
	}
	if len(r.Query.Get("pageToken")) > token {
		return edge.InvalidParameter("pageToken", "is none of ours")
	}
	return nil
}

func (s *Server) deleteSnapshot(w http.ResponseWriter, r *edge.Request) error {
	if _, err := s.backup.DeleteSnapshot(r.Context(), &agentfsv1.DeleteSnapshotRequest{OrganizationId: r.IDs["organizationId"],
		Name: r.IDs["name"]}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// export streams a copy of an organization's AgentFS.
func (s *Server) export(w http.ResponseWriter, r *edge.Request) error {
	snapshot := r.Query.Get("snapshot")
	if r.Query.Has("snapshot") && !snapshotPattern.MatchString(snapshot) {
		return edge.InvalidParameter("snapshot", "must be 1 to 63 of a-z, 0-9 and -")
	}
	// The copy is made before its first byte is there.
	ctx, stall := newStall(r.Context(), s.cfg.Maintenance)
	defer stall.end()
	stream, err := s.backup.ExportOrganization(ctx, &agentfsv1.ExportOrganizationRequest{OrganizationId: r.IDs["organizationId"], Snapshot: snapshot})
	if err != nil {
		return err
	}
	var m *agentfsv1.ExportOrganizationResponse
	receive := func() error {
		return stall.during(func() error {
			m, err = stream.Recv()
			return err
		})
	}
	if err := receive(); err != nil {
		return early(err)
	}
	size, name := m.GetSize(), r.IDs["organizationId"]
	if snapshot != "" {
		name += "-" + snapshot
	}
	h := w.Header()
	h.Set("Content-Type", mediaSQLite)
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Content-Disposition", entity.Attachment(name+".db"))
	w.WriteHeader(http.StatusOK)
	for sent := int64(0); ; {
		err := receive()
		if sent == size && err == io.EOF {
			return nil
		}
		if err != nil {
			return early(err)
		}
		if sent += int64(len(m.GetData())); sent > size {
			return fmt.Errorf("export: agentfs sent more than the %d bytes it announced", size)
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return fmt.Errorf("send an export: %w", err)
		}
	}
}

const mediaSQLite = "application/vnd.sqlite3"
