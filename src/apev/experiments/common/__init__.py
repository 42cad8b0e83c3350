"""What every experiment needs: seeds, tables, charts, pages, statistics, provenance."""
