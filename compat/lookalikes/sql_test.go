package lookalikes

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
)

func database(t *testing.T, prompt string, n int) (*sql.DB, sqlmock.Sqlmock) {
	db, mock, err := sqlmock.New()
	ok(t, err)
	for range n {
		mock.ExpectQuery("select").WillReturnRows(sqlmock.NewRows([]string{"text"}).AddRow(prompt).AddRow("b"))
	}
	mock.ExpectClose()
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db, mock
}

func TestSQLQuery(t *testing.T) {
	e := guarded(t)
	db, _ := database(t, e.generate("a"), 1)
	rows, err := db.Query("select")
	ok(t, err)
	for rows.Next() {
		ok(t, rows.Scan(new(string)))
	}
	ok(t, rows.Err())
}

func TestSQLRowsClosedEarly(t *testing.T) {
	e := guarded(t)
	db, _ := database(t, e.generate("a"), 1)
	rows, err := db.QueryContext(t.Context(), "select")
	ok(t, err)
	rows.Next()
	ok(t, rows.Close())
}

func TestSQLRowsLeftOpenUntilTheContextEnds(t *testing.T) {
	e := guarded(t)
	db, _ := database(t, e.generate("a"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	rows, err := db.QueryContext(ctx, "select")
	ok(t, err)
	rows.Next()
	cancel()
}

func TestSQLTransactionRolledBackByItsContext(t *testing.T) {
	e := guarded(t)
	db, mock, err := sqlmock.New()
	ok(t, err)
	mock.MatchExpectationsInOrder(false)
	mock.ExpectBegin()
	mock.ExpectRollback()
	mock.ExpectClose()
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), e, e))
	_, err = db.BeginTx(ctx, nil)
	ok(t, err)
	cancel()
	_ = db.Close()
}

func TestSQLPoolLimits(t *testing.T) {
	e := guarded(t)
	db, _ := database(t, e.generate("a"), 3)
	db.SetMaxOpenConns(1)
	db.SetConnMaxLifetime(time.Minute)
	db.SetConnMaxIdleTime(time.Minute)
	for range 3 {
		var text string
		ok(t, db.QueryRow("select").Scan(&text))
	}
}

func TestSQLConn(t *testing.T) {
	e := guarded(t)
	db, _ := database(t, e.generate("a"), 0)
	conn, err := db.Conn(t.Context())
	ok(t, err)
	ok(t, conn.Raw(func(any) error { _ = e.generate("raw"); return nil }))
	ok(t, conn.Close())
}

func TestSQLPrepared(t *testing.T) {
	e := guarded(t)
	db, mock, err := sqlmock.New()
	ok(t, err)
	mock.ExpectPrepare("select").ExpectQuery().WillReturnRows(sqlmock.NewRows([]string{"text"}).AddRow(e.generate("a")))
	mock.ExpectClose()
	stmt, err := db.Prepare("select")
	ok(t, err)
	var text string
	ok(t, stmt.QueryRow().Scan(&text))
	ok(t, stmt.Close())
	ok(t, db.Close())
}
