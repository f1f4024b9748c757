package io.unitycatalog.spark;

import io.unitycatalog.client.ApiClient;
import io.unitycatalog.client.ApiClientBuilder;
import io.unitycatalog.client.ApiException;
import io.unitycatalog.client.api.SchemasApi;
import io.unitycatalog.client.api.TablesApi;
import io.unitycatalog.client.auth.TokenProvider;
import io.unitycatalog.client.model.ColumnInfo;
import io.unitycatalog.client.model.CreateTable;
import io.unitycatalog.client.model.DataSourceFormat;
import io.unitycatalog.client.model.SchemaInfo;
import io.unitycatalog.client.model.TableInfo;
import io.unitycatalog.client.model.TableType;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Stands where Unity Catalog's own plugin for Spark stands, which the registries of this project do not have. Loading, making and
 * committing are Delta's: it asks the server with its own client as soon as the catalog below it is of this package.
 */
public class UCSingleCatalog extends DeltaCatalog {
    private static final String MANAGED = "delta.feature.catalogManaged";

    public void initialize(String name, CaseInsensitiveStringMap options) {
        setDelegateCatalog((CatalogPlugin) new Server(name, options));
        super.initialize(name, options);
    }

    public Table createTable(Identifier ident, StructType schema, Transform[] partitions, Map properties) {
        Map wanted = new HashMap(properties);
        if (!properties.containsKey(TableCatalog.PROP_LOCATION)) {
            wanted.put(MANAGED, "supported");
        }
        return super.createTable(ident, schema, partitions, wanted);
    }

    /** What Delta leaves to the catalog: schemas, lists of tables, and tables that have a place of their own. */
    public static class Server implements TableCatalog, SupportsNamespaces {
        private final String name;
        private final TablesApi tables;
        private final SchemasApi schemas;

        public Server(String name, CaseInsensitiveStringMap options) {
            Map token = new HashMap();
            token.put("type", "static");
            token.put("token", options.get("token"));
            TokenProvider provider = (TokenProvider) made(TokenProvider.class, new Class[] {Map.class}, new Object[] {token});
            ApiClientBuilder builder = (ApiClientBuilder) made(ApiClientBuilder.class, new Class[0], new Object[0]);
            ApiClient client = builder.uri(options.get("uri")).tokenProvider(provider).build();
            this.name = name;
            this.tables = new TablesApi(client);
            this.schemas = new SchemasApi(client);
        }

        /** By a static method of an interface, which Spark's own compiler cannot call. */
        private static Object made(Class kind, Class[] kinds, Object[] arguments) {
            try {
                return kind.getMethod("create", kinds).invoke(null, arguments);
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }

        public void initialize(String name, CaseInsensitiveStringMap options) {}

        public String name() {
            return name;
        }

        private String whole(Identifier ident) {
            return name + "." + ident.namespace()[0] + "." + ident.name();
        }

        public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
            try {
                List found = tables.listTables(name, namespace[0], Integer.valueOf(0), null).getTables();
                Identifier[] out = new Identifier[found.size()];
                for (int k = 0; k < out.length; k++) {
                    out[k] = new Name(namespace, ((TableInfo) found.get(k)).getName());
                }
                return out;
            } catch (ApiException error) {
                throw new NoSuchNamespaceException(namespace);
            }
        }

        /** Delta loads its own tables by itself. */
        public Table loadTable(Identifier ident) throws NoSuchTableException {
            throw new NoSuchTableException(ident);
        }

        public Table createTable(Identifier ident, StructType schema, Transform[] partitions, Map properties) {
            List columns = new ArrayList();
            StructField[] fields = schema.fields();
            for (int k = 0; k < fields.length; k++) {
                String json = new StructType(new StructField[] {fields[k]}).json();
                String field = json.substring(json.indexOf('[') + 1, json.lastIndexOf(']'));
                columns.add(new ColumnInfo().name(fields[k].name()).typeJson(field).position(Integer.valueOf(k)));
            }
            CreateTable request = new CreateTable();
            request.setName(ident.name());
            request.setSchemaName(ident.namespace()[0]);
            request.setCatalogName(name);
            request.setTableType(TableType.EXTERNAL);
            request.setDataSourceFormat(DataSourceFormat.DELTA);
            request.setStorageLocation((String) properties.get(TableCatalog.PROP_LOCATION));
            request.setColumns(columns);
            try {
                tables.createTable(request);
            } catch (ApiException error) {
                throw new RuntimeException(error);
            }
            return null;
        }

        public Table alterTable(Identifier ident, TableChange[] changes) {
            throw new UnsupportedOperationException("altering a table");
        }

        public boolean dropTable(Identifier ident) {
            try {
                tables.deleteTable(whole(ident));
                return true;
            } catch (ApiException error) {
                return false;
            }
        }

        public void renameTable(Identifier from, Identifier to) {
            throw new UnsupportedOperationException("renaming a table");
        }

        public String[][] listNamespaces() {
            try {
                List found = schemas.listSchemas(name, Integer.valueOf(0), null).getSchemas();
                String[][] out = new String[found.size()][];
                for (int k = 0; k < out.length; k++) {
                    out[k] = new String[] {((SchemaInfo) found.get(k)).getName()};
                }
                return out;
            } catch (ApiException error) {
                throw new RuntimeException(error);
            }
        }

        public String[][] listNamespaces(String[] namespace) {
            return namespace.length == 0 ? listNamespaces() : new String[0][];
        }

        public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
            try {
                schemas.getSchema(name + "." + namespace[0]);
                return new HashMap();
            } catch (ApiException error) {
                throw new NoSuchNamespaceException(namespace);
            }
        }

        public void createNamespace(String[] namespace, Map metadata) {
            throw new UnsupportedOperationException("making a schema");
        }

        public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
            throw new UnsupportedOperationException("altering a schema");
        }

        public boolean dropNamespace(String[] namespace, boolean cascade) {
            throw new UnsupportedOperationException("dropping a schema");
        }
    }

    /** A name of a table in a schema. */
    public static class Name implements Identifier {
        private final String[] namespace;
        private final String name;

        public Name(String[] namespace, String name) {
            this.namespace = namespace;
            this.name = name;
        }

        public String[] namespace() {
            return namespace;
        }

        public String name() {
            return name;
        }
    }
}
