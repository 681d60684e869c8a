package libsql_test

import (
	"testing"

	"humanwork.internal/services/sessiondb/internal/store"
	"humanwork.internal/services/sessiondb/internal/store/libsql"
	"humanwork.internal/services/sessiondb/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(cellDir string) store.Store { return libsql.New(cellDir) })
}
